"""plan.lock: the resolved study and everything that is fixed before the first step, the text it trains on included."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any, ClassVar, Literal, Self
from weakref import WeakValueDictionary

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from ablationlab.core.errors import AblationLabError, RecordError
from ablationlab.records.environment import Environment, Git
from ablationlab.records.evaluation import Source
from ablationlab.records.metrics import Metric
from ablationlab.records.probes import ProbeDefinition
from ablationlab.records.seal import SealedRecord
from ablationlab.records.settings import ModelConfig, Study, TrainingConfig, with_paths
from ablationlab.records.storage import MEND_PLAN, Record, ResultsFolder, StoredValue, content_hash, numbered, read_json
from ablationlab.stats.results import FittedMinimum

#: Folders of a results folder beside plan.lock.
LOOKS, AMENDMENTS = "looks", "amendments"
#: The folder beside the plan of a study that says which others use its baseline runs.
REUSED = "reused"
#: The folder of what is trained before the plan is sealed: tries of calibrated regimes, and stages of a sweep.
CALIBRATION = "calibration"
#: Where this machine has the texts and the code that plan.lock names; no record, and of no use elsewhere.
PLACES = "places.json"


class Shared(StoredValue):
    """What a component has in common with its mixture; documents and tokens are of its training text.

    ``leaked``: also held-out text, of any component. ``repeated``: also training text, of a smaller component. ``seen``:
    share of the words of its held-out text that are in a run of 13 which training text of any component has too;
    ``seen_without``: with the documents counted here left out of it.
    """

    leaked_exact: int
    """Training documents whose words are those of a held-out document."""
    leaked_near: int
    """Training documents that nearly equal a held-out one."""
    leaked_contained: int
    """Training documents that share half of the shorter one's runs of 13 words with a held-out one."""
    repeated_exact: int
    """Training documents that a smaller component has too."""
    repeated_near: int
    """Training documents that nearly equal one of a smaller component."""
    tokens: int
    """Tokens of all these documents."""
    seen: float
    """Share of held-out words in a run of 13 words that the training text also contains."""
    seen_without: float
    """The same without these documents."""

    @property
    def leaked(self) -> int:
        return self.leaked_exact + self.leaked_near + self.leaked_contained

    @property
    def repeated(self) -> int:
        return self.repeated_exact + self.repeated_near


class Component(StoredValue):
    """One prepared corpus of a mixture, or the only one. ``weight``: the probability that a sample comes from it."""

    name: str
    """As the study names it."""
    source: str
    """Where it came from."""
    weight: float
    """Probability that a sample comes from it; weights add up to 1."""
    sha256: str
    """Of its text."""
    tokens_sha256: str
    """Of its tokens."""
    documents: int
    """All its documents."""
    train_documents: int
    """Documents of the training part, after overlaps are removed."""
    train_tokens: int
    """Tokens of the training part, after overlaps are removed."""
    validation_tokens: int
    """Tokens of the held-out part."""
    validation_bytes: int
    """Bytes of the held-out part."""
    held_out: Literal["documents", "tokens"]
    """Whether the parts were cut between two documents or inside one."""
    duplicates: float | None = None
    """Share of its documents that were left out as duplicates; null if none was looked for."""
    shared: Shared | None = None
    """What it has in common with its mixture; null if not looked for."""


class Corpus(StoredValue):
    """The text that was used, and what it became."""

    name: str
    """As the study names it."""
    source: str
    """Where it came from."""
    sha256: str
    """Of the text."""
    tokenizer: str
    """Its tokenizer."""
    vocabulary: int
    """Number of tokens of the vocabulary."""
    tokens_sha256: str
    """Of the tokens."""
    train_tokens: int
    """Tokens of the training part."""
    validation_tokens: int
    """Tokens of the held-out part."""
    validation_bytes: int
    """Bytes that the predicted held-out tokens stand for."""
    characters: str | None = None
    """A character tokenizer's vocabulary, in the order of its ids."""
    components: tuple[Component, ...] = ()
    """Prepared corpora, in the order of their tokens."""
    overlap: Literal["remove-from-training", "keep"] | None = None
    """What was done with text that components share; null without a mixture."""


class DrawnText(StoredValue):
    """What a run was fed of one component: samples, the tokens they predict (no padding: all count), ends of documents
    among those, and its share of all samples.
    """

    name: str
    """The component."""
    samples: int
    """Samples drawn from it."""
    tokens: int
    """Tokens predicted; there is no padding, so all count."""
    ends_of_documents: int | None
    """Ends of documents among them; null where the tokenizer has none."""
    share: float
    """Its share of all samples."""


class Budget(StoredValue):
    """What a run costs by definition, equal for all arms of a comparison up to what a variant declares.

    ``step_seconds`` is what a step of its arm took before the plan was sealed, where time is to be equal.
    """

    steps: int
    """Steps of the run."""
    tokens: int
    """Tokens of the run."""
    matmul_flops: int
    """FLOPs of matrix products, forward and backward (3 × forward); the causal half is not discounted."""
    parameters: int
    """Parameters of the model."""
    match: Literal["tokens", "flops", "time"] = "tokens"
    """What all arms share."""
    step_seconds: float | None = None
    """Seconds of a step of its arm, measured before sealing; only where time is matched."""


class Execution(StoredValue):
    """How the bits are made; sealed before the first step."""

    device: Literal["cpu", "cuda"]
    device_name: str
    precision: Literal["fp32", "tf32", "bf16", "own"]  # own: the user's trainer decides
    stack_width: int
    threads: int
    # Of a run that torchrun spreads over processes, as found when it began; the plan's study says what was asked for.
    parallel: Literal["none", "ddp", "fsdp"] = "none"
    ranks: int = 1
    activation_checkpointing: bool = False

    def layout(self) -> tuple[str, int, bool]:
        """How one run lies on its devices."""
        return self.parallel, self.ranks, self.activation_checkpointing

    def over(self, layout: tuple[str, int, bool]) -> Self:
        """The same, laid out otherwise."""
        names = ("parallel", "ranks", "activation_checkpointing")
        return self.model_copy(update=dict(zip(names, layout, strict=True)))


class Declaration(StoredValue):
    """A variant as it was declared: what it is about, its formula, and what it may change.

    ``settings`` are keys such as "model.front.norm" or "training.weight_decay", ``parameters`` patterns of parameter names,
    ``data`` what it changes in the study's [data]; ``flops``: a token costs it more or fewer than the study's model.
    """

    formula: str = ""
    about: str = ""
    settings: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    flops: bool = False
    data: dict[str, Any] = Field(default_factory=dict)

    def formula_in(self, model: ModelConfig | None) -> str:
        """The formula, unless it has an E_pos and *model* adds no position to the embedding.

        E_pos is a sign of formulas (docs/variants.md). No rule by settings replaces it: ``RMSNorm(E_tok)``, which is true
        without positions, changes the same settings.
        """
        added = model is None or model.position in ("learned", "sinusoidal")
        return self.formula if added or "E_pos" not in self.formula else ""

    def moved(self, place: Callable[[str], str]) -> Self:
        """With other paths of corpora."""
        return self.model_copy(update={"data": with_paths(self.data, place)}) if self.data else self

    def covers_setting(self, key: str) -> bool:
        """Whether a setting may differ: it is named, or the table it stands in is."""
        return any(key == setting or key.startswith(f"{setting}.") for setting in self.settings)

    def covers_parameter(self, name: str) -> bool:
        """Whether a parameter may differ in its presence, shape or start."""
        return any(fnmatchcase(name, pattern) for pattern in self.parameters)


class PlannedTask(StoredValue):
    """A task that the study's ``[evaluation]`` names, groups opened, with the templates it is asked in.

    ``characters``: those that a template of the suite is written with, by its name. Of the harness, ``name`` is as the study
    has it: a task, or a tag, group or file that only the harness can open.
    """

    source: Source
    name: str
    templates: tuple[str, ...]
    characters: dict[str, str] = Field(default_factory=dict)


#: What a run is for: the study's own comparisons, a rate of its sweep beside them, the gate of its tasks, or a combination of
#: seeds that tells where the noise comes from; the last two are never compared.
RunRole = Literal["compared", "sweep", "gate", "noise"]


class Try(StoredValue):
    """One value that a calibration tried, on its own baselines: how many broke, and the seal of their plan."""

    value: float
    seeds: tuple[int, ...]
    broken: int
    plan_hash: str

    @property
    def share(self) -> float:
        return self.broken / len(self.seeds)

    def near(self, target: float) -> bool:
        """Some runs break and some do not, and no other such number of broken runs on its side is nearer to the target."""
        wanted = round(target * len(self.seeds), 9)  # 0.3 of 10 runs are 3, whatever floats say
        return 0 < self.broken < len(self.seeds) and math.floor(wanted) <= self.broken <= math.ceil(wanted)


class Calibrated(StoredValue):
    """What was found before the plan was sealed, and every value that was tried, in order (docs/designs.md)."""

    setting: str
    value: float
    tries: tuple[Try, ...]

    @property
    def chosen(self) -> Try:
        return next(attempt for attempt in reversed(self.tries) if attempt.value == self.value)


class TwoStages(StoredValue):
    """What the two stages of a sweep found before the plan was sealed: the seal of each stage's plan, and by variant the
    best rate and how far its loss may be off (docs/stability.md)."""

    plans: tuple[str, ...]
    minima: dict[str, FittedMinimum]


class Reused(StoredValue):
    """Baseline runs of an earlier study that serve in this one; docs/designs.md says what that costs."""

    source: str
    """The earlier study's results folder, without the folders above it."""
    study: str
    """Its name."""
    plan_hash: str
    """The plan that the runs were trained under."""
    created: str
    """When that was sealed."""
    studies: int
    """How many studies rested on these runs when this plan was sealed, that one and this one among them."""
    files: dict[str, dict[str, str]]
    """By run, the SHA-256 of every file that it sealed when it ended, but for its scores."""


class Reuse(SealedRecord):
    """reused/<number>.json, beside the plan of a study whose baseline runs another one uses."""

    KIND: ClassVar[str] = "reuse"
    MEND: ClassVar[str] = MEND_PLAN
    plan_hash: str
    """The plan beside it."""
    study: str
    """Name of the study that uses the runs."""
    by: str
    """The plan of that study."""
    runs: tuple[str, ...]
    """Those that it uses."""
    before: str
    """Seal of the record before it; empty for the first."""
    created: str
    """When the runs were copied."""


#: Spread of measured step times above which a measurement is called noisy.
NOISY_SPREAD = 0.05


class StepTime(StoredValue):
    """Seconds of one training step of an arm's stack, on the plan's device and threads, measured before the plan was sealed.

    ``rounds``: the mean of a block of steps, once per round; every round times every arm. ``seed`` is that of the measured
    stack, and of no run.
    """

    regime: str
    variant: str
    seed: int
    rounds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return median(self.rounds)

    @property
    def spread(self) -> float:
        """Interquartile range of the rounds, as a share of their median."""
        low, _, high = quantiles(self.rounds, n=4, method="inclusive")
        return (high - low) / self.seconds


class Recipe(StoredValue):
    """How this package makes a run, and what the run costs."""

    model: ModelConfig
    training: TrainingConfig
    budget: Budget


_recipes: WeakValueDictionary[str, Recipe] = WeakValueDictionary()


def _shared(recipe: Recipe) -> Recipe:
    """The one object that stands for all equal recipes: ten thousand runs have twenty."""
    return _recipes.setdefault(recipe.model_dump_json(), recipe)


class OwnTrainerError(AblationLabError):
    """Something was asked of a run that only runs of this package's own loop have."""


class Streams(StoredValue):
    """Seeds of a run whose streams do not share one."""

    init: int
    data: int
    dropout: int


#: The id of a run is the name of its folder.
RUN_ID = r"^[A-Za-z0-9][A-Za-z0-9._=+-]{0,249}$"


class WithRecipe(StoredValue):
    """A run, planned or recorded. This package trains it, by ``recipe``, or the user's own trainer, by ``settings``.

    ``seed`` is that of all its streams, unless ``streams`` gives each its own; then it is that of the initial weights.
    """

    id: str = Field(pattern=RUN_ID)
    seed: int
    streams: Streams | None = None
    recipe: Annotated[Recipe, AfterValidator(_shared)] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def model(self) -> ModelConfig:
        return self._recipe.model

    @property
    def training(self) -> TrainingConfig:
        return self._recipe.training

    @property
    def budget(self) -> Budget:
        return self._recipe.budget

    @property
    def _recipe(self) -> Recipe:
        if self.recipe is None:
            raise OwnTrainerError(f"{self.id} was trained by the study's own trainer: its model is not known here")
        return self.recipe

    @property
    def seed_triple(self) -> tuple[int, int, int]:
        """Seeds of initial weights, data order and dropout."""
        own = self.streams
        return (self.seed, self.seed, self.seed) if own is None else (own.init, own.data, own.dropout)

    @property
    def lr(self) -> float:
        return self._recipe.training.lr

    @property
    def steps(self) -> int | None:
        """The steps of its budget, or those that the tables of the user's own trainer name; None where they do not."""
        if self.recipe is not None:
            return self.recipe.budget.steps
        named = self.settings.get("training", {}).get("steps")
        return named if isinstance(named, int) and named > 0 else None


class PlannedRun(WithRecipe):
    """One cell of the study."""

    role: RunRole
    variant: str
    regime: str
    stack: int
    slot: int

    @property
    def is_scored(self) -> bool:
        """Tasks are put to it, which a sweep's other rates and runs that measure noise do not need."""
        return self.role not in ("sweep", "noise")


#: What a look finds of a variant on a primary criterion.
Finding = Literal["difference", "equivalent", "futile", "undecided"]


class LookFinding(StoredValue):
    """One primary comparison at a look.

    ``p`` is that of the paired t-test, ``level`` what it had to reach were the variant alone, ``p_sequential`` that of the
    whole procedure so far, and ``chance`` the predictive probability of being decided by the last look (None at the last).
    """

    comparison: str
    finding: Finding
    p: float | None
    level: float
    p_sequential: float | None
    chance: float | None = None


class LookResult(StoredValue):
    """What a planned look saw. ``stop``: every variant is decided, or the study's own seeds are trained. ``later``: the
    seeds of the looks that are left."""

    number: int
    of: int
    seeds: int
    stop: bool
    later: tuple[int, ...] = ()
    findings: tuple[LookFinding, ...]


class Look(SealedRecord):
    """looks/<number>.json, written once: the study stopped there, or its next runs were asked for."""

    KIND: ClassVar[str] = "look"
    MEND: ClassVar[str] = MEND_PLAN
    plan_hash: str
    created: str
    result: LookResult


class Registration(SealedRecord):
    """study.lock: the whole study, sealed before its regimes are calibrated and before a sweep of two stages; plan.lock
    follows with what was found."""

    KIND: ClassVar[str] = "registration"
    study: Study
    study_hash: str
    created: str


class Amendment(SealedRecord):
    """amendments/<number>.json: runs that were added after the plan was sealed.

    ``look``: the planned look that they complete, after the study had stopped; None for runs that no design has. ``seeds``:
    those that plan.lock does not have.
    """

    KIND: ClassVar[str] = "amendment"
    MEND: ClassVar[str] = MEND_PLAN
    plan_hash: str
    created: str
    reason: str
    look: int | None
    seeds: tuple[int, ...]
    variants: dict[str, Declaration]
    corpora: dict[str, Corpus] = Field(default_factory=dict)
    runs: tuple[PlannedRun, ...]
    stacks: tuple[tuple[str, ...], ...]

    @model_validator(mode="after")
    def _every_run_is_trained_once(self) -> Self:
        if sorted(run.id for run in self.runs) != sorted(chain.from_iterable(self.stacks)):
            raise ValueError("its stacks do not hold each of its runs once")
        return self


class Deposit(SealedRecord):
    """deposit.json: what to leave with others, so that they can say when a plan was sealed."""

    KIND: ClassVar[str] = "deposit"
    MEND: ClassVar[str] = "Fetch the copy from where it was deposited"
    study: str
    plan_hash: str
    study_hash: str
    criteria_hash: str
    created: str
    git: Git

    @classmethod
    def of(cls, plan: Plan) -> Self:
        names = ("plan_hash", "study_hash", "criteria_hash", "created")
        return cls(study=plan.study.name, git=plan.environment.git, **{name: getattr(plan, name) for name in names})


def relocated(study: Study, place: Callable[[str], str]) -> Study:
    """A study with other paths of its corpora, its own code and its own trainer; names of corpora stay."""
    data = with_paths({"corpus": study.data.corpus, "mixture": study.data.mixture}, place)
    tables = study.tables
    if study.trainer is None:  # of a user's own trainer only that knows what its tables mean
        tables = {
            name: table.model_copy(update={"data": with_paths(table.data, place)}) for name, table in tables.items()
        }
    moved = {
        "reuse": tuple(map(place, study.reuse)),
        "data": study.data.model_copy(update=data),
        "use": tuple(code.model_copy(update={"path": place(code.path)}) for code in study.use),
        "tables": tables,
        "trainer": None if study.trainer is None else study.trainer.moved(place),
    }
    return study.model_copy(update=moved)


def without_paths(study: Study) -> tuple[Study, dict[str, str]]:
    """A study with names in the place of paths, and where these lie on this machine."""
    places: dict[str, str] = {}

    def name(path: str) -> str:
        short, number = f"./{Path(path).name}", 1
        while places.get(short, path) != path:
            number += 1
            short = f"./{number}/{Path(path).name}"
        places[short] = path
        return short

    return relocated(study, name), places


class Plan(Record):
    """plan.lock. ``variants``, ``metrics``, ``probes`` and ``tasks`` are declared as they were when it was sealed.

    Whoever reads results takes them from here, not from what is installed.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    KIND: ClassVar[str] = "plan"
    MEND: ClassVar[str] = MEND_PLAN
    study: Study
    study_hash: str
    criteria_hash: str
    variants: dict[str, Declaration]
    metrics: dict[str, Metric]
    probes: dict[str, ProbeDefinition]
    tasks: tuple[PlannedTask, ...]
    lab_corpus: Corpus | None = Field(alias="corpus")  # the study's own; None with the user's own trainer
    corpora: dict[str, Corpus] = Field(default_factory=dict)  # of variants that change [data]
    # nats/token of the study's own validation text, for uniform guessing and for n-gram models of its training text.
    reference_losses: dict[str, float] = Field(default_factory=dict)
    execution: Execution
    runs: tuple[PlannedRun, ...]
    stacks: tuple[tuple[str, ...], ...]
    calibrations: dict[str, Calibrated] = Field(default_factory=dict)
    tuned: TwoStages | None = None
    reused: tuple[Reused, ...] = ()
    step_times: tuple[StepTime, ...] = ()  # of every arm, where [budget] makes time equal
    # Of the files that the study's own trainer consists of: path -> sha256.
    files: dict[str, str] = Field(default_factory=dict)
    environment: Environment
    created: str
    plan_hash: str
    # Beside plan.lock, not in it: what came after the seal.
    looks: tuple[Look, ...] = Field(default=(), exclude=True)
    amendments: tuple[Amendment, ...] = Field(default=(), exclude=True)

    @staticmethod
    def seal(content: dict[str, Any]) -> str:
        """Hash of a plan's JSON: everything but the hash itself. It dates the registration: time and commit are inside.

        Of the file's own content, so that a later version of this program, which may know more fields, finds it whole.
        """
        return content_hash({key: value for key, value in content.items() if key != "plan_hash"})

    def sealed(self) -> Self:
        return self.model_copy(update={"plan_hash": self.seal(json.loads(self.model_dump_json()))})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Load the plan in force; one whose seal is broken is refused."""
        plan, holds = cls.read_with_seal(path)
        if not holds:
            raise RecordError("was changed after it was sealed: its content does not match plan_hash", path, cls.MEND)
        return plan

    @classmethod
    def of(cls, results: ResultsFolder) -> Self:
        """The plan in force of a results folder; one without a plan is refused."""
        results.check_planned()
        return cls.read(results.plan)

    @classmethod
    def read_with_seal(cls, path: Path) -> tuple[Self, bool]:
        """Load the plan in force, and say whether the seal of plan.lock holds."""
        plan = cls.read_sealed(path)
        looks = {file: Look.read(file) for file in numbered(path.parent / LOOKS, digits=1)}
        amendments = {file: Amendment.read(file) for file in numbered(path.parent / AMENDMENTS)}
        for file, later in (looks | amendments).items():
            if later.plan_hash != plan.plan_hash:
                raise RecordError(f"belongs to another plan than {path.name}", file, cls.MEND)
        study = plan.study
        hashes = (plan.plan_hash, plan.study_hash, plan.criteria_hash)
        holds = hashes == (cls.seal(read_json(path)), study.hash, study.criteria_hash)
        return plan.in_force(tuple(looks.values()), tuple(amendments.values())), holds

    @classmethod
    def read_sealed(cls, path: Path) -> Self:
        """Load plan.lock itself, with the runs of all looks and of no amendment."""
        plan, file = super().read(path), path.parent / PLACES
        mend = "Restore it, or remove it: only texts and code given by path need it"
        try:
            places = read_json(file) if os.path.lexists(file) else {}
        except RecordError as error:
            raise error.mended_by(mend) from error
        if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
            raise RecordError("is not a table of paths", file, mend)
        return plan._moved(lambda name: places.get(name, name)) if places else plan

    def kept(self) -> Self:
        """The plan as it is written: paths are names alone."""
        names = {path: name for name, path in without_paths(self.study)[1].items()}
        return self._moved(lambda path: names.get(path, path)).sealed()

    def _moved(self, place: Callable[[str], str]) -> Self:
        variants = {name: declared.moved(place) for name, declared in self.variants.items()}
        files = {place(name): sha256 for name, sha256 in self.files.items()}
        reused = tuple(each.model_copy(update={"source": place(each.source)}) for each in self.reused)
        moved = {"study": relocated(self.study, place), "variants": variants, "files": files, "reused": reused}
        return self.model_copy(update=moved)

    def in_force(self, looks: tuple[Look, ...], amendments: tuple[Amendment, ...]) -> Self:
        """A sealed plan without the runs of looks that are not asked for (yet), and with those of its amendments.

        A stack that is not asked for is empty, so that the others keep their numbers.
        """
        study = self.study
        asked = max(
            [
                1,
                *(look.result.number + 1 for look in looks if not look.result.stop),
                *(amendment.look for amendment in amendments if amendment.look is not None),
            ]
        )
        runs = [run for run in self.runs if study.look_of(run.seed) <= asked]
        ids = {run.id for run in runs}
        stacks = [stack if ids.issuperset(stack) else () for stack in self.stacks]
        seeds = [seed for seed in study.seeds if study.look_of(seed) <= asked]
        variants, corpora = dict(self.variants), dict(self.corpora)
        for amendment in amendments:
            runs += [run.model_copy(update={"stack": run.stack + len(stacks)}) for run in amendment.runs]
            stacks += amendment.stacks
            seeds += [seed for seed in amendment.seeds if seed not in seeds]
            variants |= amendment.variants
            corpora |= amendment.corpora
        return self.model_copy(
            update={
                "study": study.changed(seeds=tuple(seeds), variants=tuple(variants)),
                "runs": tuple(runs),
                "stacks": tuple(stacks),
                "variants": variants,
                "corpora": corpora,
                "looks": looks,
                "amendments": amendments,
            }
        )

    @property
    def stopped(self) -> bool:
        """Whether the study stopped at the last look that it was asked for: nothing more trains by itself."""
        asked = max((amendment.look or 0 for amendment in self.amendments), default=0)
        return bool(self.looks) and self.looks[-1].result.stop and self.looks[-1].result.number >= asked

    @property
    def corpus(self) -> Corpus:
        if self.lab_corpus is None:
            raise OwnTrainerError(f"{self.study.name}: only the study's own trainer knows its text")
        return self.lab_corpus

    @property
    def compared(self) -> tuple[PlannedRun, ...]:
        """The runs that are compared; the others are a sweep's other rates, the gate's, and those that measure noise."""
        return tuple(run for run in self.runs if run.role == "compared")

    def reused_from(self, run_id: str) -> Reused | None:
        """The earlier study that a run comes from; None for one that is trained here."""
        return next((each for each in self.reused if run_id in each.files), None)

    def made_under(self, run_id: str) -> str:
        """The hash of the plan that a run was trained under."""
        source = self.reused_from(run_id)
        return self.plan_hash if source is None else source.plan_hash

    def run(self, run_id: str) -> PlannedRun:
        return next(run for run in self.runs if run.id == run_id)

    def corpus_of(self, variant: str) -> Corpus:
        """The text that the runs of a variant train on."""
        return self.corpora.get(variant, self.corpus)

    def execution_of(self, run: PlannedRun) -> Execution:
        """How the bits of one run are made: as for all, in the precision of its regime, which its stack shares."""
        if run.recipe is None:
            return self.execution
        return self.execution.model_copy(update={"precision": run.training.precision})
