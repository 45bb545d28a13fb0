"""Verbs over trained runs: evaluate, analyze, compare; and power, which plans them. Heavy imports happen inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ablationlab.cli.common import (
    Form,
    Printer,
    Processes,
    Quiet,
    ResultsPath,
    RunView,
    Set,
    Several,
    Share,
    StudyFile,
    TrustCode,
    add,
    print_study,
)
from ablationlab.core.errors import AblationLabError
from ablationlab.core.paths import did_you_mean_beside

if TYPE_CHECKING:
    from ablationlab.analysis import Dataset

#: Options that a results folder, judged by its own plan, does not take.
TABLE = "For a table of your own runs"
Names = Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=False)]
Effect = Annotated[
    float | None,
    Parameter(name="--smallest-effect", help="Smallest difference that matters; on the log scale for --log metrics."),
]


def register(app: App) -> None:
    """Add these verbs to the command."""
    for verb in (evaluate, analyze, power, trend, compare):
        add(app, verb)


def evaluate(
    results: ResultsPath,
    *,
    tasks: Annotated[
        tuple[str, ...],
        Several,
        Parameter(
            help="Tasks of the suite (`suite` for all), benchmarks (`benchmarks` for all), tasks of the harness, or YAML "
            "files. Default: evaluation.tasks of the study, or `suite`."
        ),
    ] = (),
    fewshot: Annotated[
        tuple[int, ...],
        Several,
        Parameter(validator=Number(gte=0), help="Numbers of examples, such as 0 2. Default: evaluation.fewshot."),
    ] = (),
    templates: Annotated[
        Literal["one", "all"] | None, Parameter(help="One template per task, or all. Default: evaluation.templates.")
    ] = None,
    items: Annotated[
        int | None,
        Parameter(validator=Number(gte=10), help="Items per task, at most. Default: evaluation.items, or all."),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Parameter(help="Where to score; the same for all runs.")
    ] = "auto",
    workers: Annotated[int | None, Processes, Parameter(help="Processes on a CPU. Default: one per core.")] = None,
    throughput: Annotated[bool, Parameter(help="Time inference and training, all runs in turn.")] = True,
    trust_code: TrustCode = False,
) -> int:
    """Score every trained run on the same items: next tokens, calibration, length, tasks through lm-eval, throughput.

    Writes evaluation.json and samples.parquet into every run's folder, and evaluation/suite.json. Only what is missing is
    scored; a task whose items or wording changed counts as missing. Afterwards: ablationlab analyze RESULTS.
    """
    from ablationlab import pipeline
    from ablationlab.analysis.wording import nothing_to_score
    from ablationlab.records.plan import Plan
    from ablationlab.records.storage import ResultsFolder
    from ablationlab.study.places import find_results
    from ablationlab.study.trust import remember, task_code
    from ablationlab.tasks import SUITE_GROUP, TaskRequest

    results = find_results(results)
    if not results.is_dir():
        raise AblationLabError(f"{results}: no such results folder{did_you_mean_beside(results)}")
    folder = ResultsFolder(results)
    remember(task_code(tasks))  # files that the command names are the user's own
    study = Plan.of(folder).study
    wanted = tasks or study.evaluation.tasks or (SUITE_GROUP,)
    request = TaskRequest.of(study, wanted, fewshot, templates, items)
    options = pipeline.Options(device, workers, trust_code=trust_code)
    printer = Printer()
    with RunView(printer) as view:
        outcome = pipeline.evaluate(folder, request, options, view, throughput=throughput)
    if outcome.nothing:
        why = nothing_to_score(outcome.not_evaluable)
        raise AblationLabError(
            f"{results}: {why}. Each is recorded as not evaluable; `ablationlab analyze` counts them"
        )
    printer.command("Next:", f"ablationlab analyze {results}")
    return 0


def analyze(
    results: Annotated[
        Path,
        Parameter(
            help="A results folder, a study file or its bare name; or runs of your own: a CSV, TSV or Parquet table, or a "
            "folder of wandb, MLflow or TensorBoard."
        ),
    ],
    *,
    study: Annotated[
        Path | None, Parameter(help="The current study file; differences from the sealed one are reported.")
    ] = None,
    out: Annotated[
        Path | None,
        Parameter(
            help="Where analysis.json and verdict.json go. Default: RESULTS; for a table NAME.csv, NAME-analysis beside it."
        ),
    ] = None,
    accept_altered: Annotated[
        bool,
        Parameter(
            negative="",
            help="Use files that changed after their runs ended. That is a deviation, and makes everything exploratory.",
        ),
    ] = False,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Also print every table.")] = False,
    form: Form = "table",
    quiet: Quiet = False,
    baseline: Annotated[
        str | None, Parameter(group=TABLE, help="The variant that the others are compared with.")
    ] = None,
    variant: Annotated[
        str | None, Parameter(group=TABLE, help="The column with the variant, such as config.arch. Default: variant.")
    ] = None,
    seed: Annotated[
        str | None, Parameter(group=TABLE, help="The column with the seed, such as config.seed. Default: seed.")
    ] = None,
    regime: Annotated[
        str | None, Parameter(group=TABLE, help="The column with the regime. Default: regime, if any.")
    ] = None,
    metric: Annotated[
        Names,
        Parameter(
            group=TABLE,
            help="A metric and which way is better, such as val/loss:lower; may be repeated, the first decides. "
            "Without it, every column whose name implies which way is better is compared.",
        ),
    ] = (),
    where: Annotated[
        Names,
        Parameter(
            group=TABLE, help="Only runs with (=) or without (!=) this value, as config.lr=0.001; may be repeated."
        ),
    ] = (),
    run_names: Annotated[
        str | None,
        Parameter(group=TABLE, help="The pattern of run names, such as '{variant}-s{seed}'; * stands for anything."),
    ] = None,
    at: Annotated[
        str | None,
        Parameter(
            group=TABLE,
            help="Which value of a curve counts: last, best or step=N; or target=X: its steps to X. Default: last.",
        ),
    ] = None,
    unpaired: Annotated[
        bool,
        Parameter(
            negative="",
            group=TABLE,
            help="Do not pair runs by seed; compare them by Welch's test.",
        ),
    ] = False,
    held_equal: Annotated[
        Literal["tokens", "flops", "time", "target"] | None,
        Parameter(group=TABLE, help="What the arms share where their steps or tokens differ."),
    ] = None,
    primary: Annotated[str | None, Parameter(group=TABLE, help="The metric that decides.")] = None,
    lower: Annotated[Names, Parameter(group=TABLE, help="A metric that is better lower; may be repeated.")] = (),
    higher: Annotated[Names, Parameter(group=TABLE, help="A metric that is better higher; may be repeated.")] = (),
    log: Annotated[Names, Parameter(group=TABLE, help="A metric to test as its logarithm, such as a perplexity.")] = (),
    smallest_effect: Effect = None,
    margin: Annotated[
        float | None,
        Parameter(group=TABLE, help="The most that the primary metric may get worse in return for stability."),
    ] = None,
    alpha: Annotated[float | None, Parameter(group=TABLE, help="Significance level. Default: 0.05.")] = None,
    test: Annotated[
        Literal["paired-t", "sign-flip", "wilcoxon"] | None,
        Parameter(group=TABLE, help="The test that decides. Default: paired-t."),
    ] = None,
    correction: Annotated[
        Literal["holm", "bonferroni", "benjamini-hochberg", "none"] | None,
        Parameter(group=TABLE, help="The correction for several variants. Default: holm."),
    ] = None,
    tie_breaker: Annotated[
        Names, Parameter(group=TABLE, help="A metric that breaks a tie; may be repeated, in order.")
    ] = (),
) -> int:
    """Compare every variant with the baseline, paired by seed, and give the verdict of the registered rules.

    RESULTS is a study's results folder: arms that differ in anything their variants did not declare are refused, and what was
    not registered before the runs is labelled exploratory. Or it is a table of your own runs, with a row per value (variant,
    seed, metric, value) or a row per run; or the files of a tracker, curves included. Arms that share no seed are compared
    unpaired, by Welch's test. Example: ablationlab analyze runs.csv --baseline none --variant config.arch --seed config.seed
    --metric val/loss:lower --out DIR. Writes analysis.json and verdict.json.
    """
    from ablationlab.analysis import read_results
    from ablationlab.analysis.conclusion import conclude
    from ablationlab.analysis.from_table import holds_runs
    from ablationlab.records.results import Results
    from ablationlab.study.load import load_study
    from ablationlab.study.places import find_results, find_study

    options = {
        "variant": variant,
        "seed": seed,
        "regime": regime,
        "metrics": metric,
        "where": where,
        "run_names": run_names,
        "at": at,
        "unpaired": unpaired or None,
        "held_equal": held_equal,
        "primary": primary,
        "lower": lower,
        "higher": higher,
        "log": log,
        "smallest_effect": smallest_effect,
        "margin": margin,
        "alpha": alpha,
        "test": test,
        "correction": correction,
        "tie_breakers": tie_breaker,
    }
    given = {name: value for name, value in options.items() if value not in (None, ())}
    results = find_results(results)
    if results.is_dir() and not holds_runs(results):
        refused = [
            f"--{_FLAGS.get(name, name).replace('_', '-')}" for name in ([*given, "baseline"] if baseline else given)
        ]
        if refused:
            text = f"{', '.join(refused)}: a results folder is judged by what its plan registered; these are for tables"
            raise AblationLabError(text)
        file = load_study(find_study(study)) if study is not None else None
        dataset = read_results(results, file, accept_altered=accept_altered)
        target, opened = out or results, results
    else:
        dataset, target = _table_dataset(results, baseline, study, out, given, accept_altered=accept_altered)
        opened = target
    concluded = conclude(dataset)
    concluded.write(target)
    made = Results.open(opened, accept_altered=accept_altered).changed(
        analysis=concluded.analysis, verdict=concluded.verdict
    )
    print_study(Printer(), made, parts=["all"] if all_ else [], form=form, quiet=quiet)
    return 0


#: Options whose fields have other names.
_FLAGS = {"metrics": "metric", "tie_breakers": "tie_breaker"}


def _table_dataset(
    path: Path,
    baseline: str | None,
    study: Path | None,
    out: Path | None,
    given: Mapping[str, object],
    *,
    accept_altered: bool,
) -> tuple[Dataset, Path]:
    from ablationlab.analysis import TableOptions, read_table
    from ablationlab.core.errors import TableError

    if not path.exists():
        raise TableError(str(path), [f"no such file or results folder{did_you_mean_beside(path)}"])
    problems: list[str] = []
    try:
        dataset = read_table(path, TableOptions.checked(baseline=baseline or "", **given))
    except TableError as error:
        problems += error.problems
    if baseline is None and not any("--baseline" in problem for problem in problems):
        problems.append("--baseline says which variant the others are compared with")
    problems += ["--study belongs to a results folder"] if study is not None else []
    problems += ["--accept-altered belongs to a results folder"] if accept_altered else []
    if problems:
        raise TableError(str(path), problems)
    return dataset, out or path.with_name(f"{path.stem}-analysis")


def power(
    study: StudyFile,
    *,
    pilot: Annotated[
        Path | None,
        Parameter(name=["--from", "--pilot"], help="Results folder of a pilot, whose spread is used."),
    ] = None,
    sd: Annotated[
        float | None,
        Parameter(help="Assumed SD of the deltas, in units of the metric (of its logarithm if that is tested)."),
    ] = None,
    discordance: Annotated[
        float | None,
        Parameter(
            help="Assumed share of items that only one of two models gets right; gives the items that an accuracy needs."
        ),
    ] = None,
    set_: Set = None,
) -> int:
    """Show what a study can show with 80 % power, and how many seeds its registered effects need.

    The spread comes from a pilot (--from) or from your assumption (--sd); without either, differences are in SDs.
    """
    from ablationlab.analysis import analyze as compute
    from ablationlab.analysis import power_plans
    from ablationlab.pipeline import metrics_at, open_study
    from ablationlab.report.terminal.can_show import notes_of, shown_view
    from ablationlab.study.places import find_results

    resolved, results = open_study(study, overrides=set_ or ())
    spread = compute(_pilot(find_results(pilot))) if pilot is not None else None
    found = power_plans(resolved, spread, sd, discordance, metrics_at(resolved, results))
    Printer().parts(*shown_view(found), *(statement.text for statement in notes_of(found)))
    return 0


def _pilot(results: Path) -> Dataset:
    from ablationlab.analysis import read_results
    from ablationlab.records.analysis import DeviationCode

    dataset = read_results(results)
    if any(known.code is DeviationCode.TAMPERED_PLAN for known in dataset.deviations):
        raise AblationLabError(
            f"{results / 'plan.lock'} was changed after it was sealed, so its runs are no pilot. Restore it, or assume a "
            "spread with --sd"
        )
    return dataset


def compare(
    a: Annotated[
        Path,
        Parameter(
            help="Samples of the reference: a folder with samples_*.jsonl of lm-eval or logs of inspect_ai, or one subfolder "
            "per seed; or one log."
        ),
    ],
    b: Annotated[Path, Parameter(help="Samples of a variant, in the same form.")],
    *more: Annotated[Path, Parameter(help="More variants; each is compared with the reference.")],
    baseline: Annotated[Path | None, Parameter(help="The reference, if it is not the first one.")] = None,
    metric: Annotated[
        str | None,
        Parameter(help="The metric to compare. Default: acc, else exact_match; for a log, its scorer."),
    ] = None,
    filter_: Annotated[
        str | None, Parameter(name="--filter", help="The filter to use, if the samples have several.")
    ] = None,
    allow_unpaired: Annotated[
        bool, Parameter(negative="", help="Leave out tasks and items that do not pair, and say how many.")
    ] = False,
    smallest_effect: Annotated[float | None, Parameter(help="Smallest difference in the metric that matters.")] = None,
    alpha: Annotated[float, Share, Parameter(help="One minus the level of the intervals.")] = 0.05,
    correction: Annotated[
        Literal["holm", "bonferroni", "benjamini-hochberg"],
        Parameter(help="The correction over all tasks and comparisons."),
    ] = "holm",
    out: Annotated[Path | None, Parameter(help="Folder for comparison.json.")] = None,
) -> int:
    """Compare folders of lm-eval --log_samples output, or logs of inspect_ai, item by item; Δ = B − A.

    Items pair on their id and the hashes of document, prompt and target. Per task: McNemar's test and a bootstrap over items
    for each seed; with three or more seeds (subfolders of the same names in A and B) a paired t over seeds and an
    interval over seeds and items; and the macro average over tasks. With three or more folders, each is compared with
    the first, and all p-values are corrected as one family.
    """
    from ablationlab.analysis.lm_eval import compare_samples
    from ablationlab.report.terminal.details import items_view

    comparisons = compare_samples(
        (a, b, *more),
        baseline=baseline,
        metric=metric,
        filter_name=filter_,
        allow_unpaired=allow_unpaired,
        alpha=alpha,
        correction=correction,
        smallest_effect=smallest_effect,
    )
    printer = Printer()
    for number, comparison in enumerate(comparisons):
        if number:
            printer.line()
        printer.parts(*items_view(comparison))
    if len(comparisons) > 1:
        printer.text(f"\nAdjusted p: over the tasks of all {len(comparisons)} comparisons together.")
    if out is not None:
        from ablationlab.records.storage import slug

        single = len(comparisons) == 1
        paths = [out / ("comparison.json" if single else f"comparison-{slug(c.variant)}.json") for c in comparisons]
        for path, comparison in zip(paths, comparisons, strict=True):
            comparison.replace(path)
        printer.text(f"\nWritten to {', '.join(map(str, paths))}")
    return 0


def trend(
    results: Annotated[
        tuple[Path, ...],
        Parameter(negative="", help="Analyzed results folders of one contrast, of three or more sizes or budgets."),
    ],
    *,
    variant: Annotated[
        str | None, Parameter(help="The variant, compared with each study's baseline. Default: the only one.")
    ] = None,
    metric: Annotated[str | None, Parameter(help="The metric. Default: the primary one.")] = None,
    regime: Annotated[str, Parameter(help="The regime.")] = "default",
    by: Annotated[
        Literal["parameters", "tokens", "matmul_flops"], Parameter(help="What to use as the size of a study.")
    ] = "parameters",
    at: Annotated[float | None, Parameter(help="Predict the effect at this size, such as 1.3e9.")] = None,
    level: Annotated[float, Share, Parameter(help="Level of the intervals.")] = 0.95,
) -> int:
    """Show how a variant's effect changes with scale, from studies of three or more sizes; with --at, predict it.

    The effects are regressed on log size, each weighted by its error and by how much the studies vary beyond the trend. The
    prediction assumes that the trend continues as a straight line.
    """
    from ablationlab.analysis.trends import study_trend
    from ablationlab.report.terminal.trend import trend_view
    from ablationlab.study.places import find_results

    found = study_trend(
        [find_results(path) for path in results],
        variant=variant,
        metric=metric,
        regime=regime,
        scale=by,
        at=at,
        level=level,
    )
    Printer().parts(*trend_view(found))
    return 0
