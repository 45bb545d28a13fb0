"""A classifier of generated images: one bar, upright or lying, in noise."""

import torch
from torch import nn

import ablationlab as lab


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a bright row (class 0) or a bright column (class 1)."""
    pixels, labels, places = torch.randn(count, 1, 8, 8), torch.randint(0, 2, (count,)), torch.randint(0, 8, (count,))
    for image, label, place in zip(pixels, labels, places, strict=True):
        image[0, place if label == 0 else slice(None), place if label == 1 else slice(None)] += 1.5
    return pixels, labels


def classifier(kind: str, width: int) -> nn.Module:
    if kind == "dense":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 2))
    pooled = (nn.Conv2d(1, width, (5, 5), padding=2), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    return nn.Sequential(*pooled, nn.Linear(width, 2))


@lab.trainer("classifier", metrics={"accuracy": "higher", "val_loss": "lower"})
def train(run: lab.Run) -> dict[str, float]:
    torch.manual_seed(0)
    validation, answers = images(500)  # the same for every run
    torch.manual_seed(run.seed)
    pixels, labels = images(1000)
    model = classifier(**run.settings["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.settings["training"]["lr"])
    run.started(model)
    for step in run.steps(model=model, optimizer=optimizer):
        # Drawn from seed and step: an arm that draws more initial weights still sees the same batches.
        data = torch.Generator().manual_seed(1_000_000 * run.seed + step)
        batch = torch.randint(0, 1000, (run.settings["training"]["batch"],), generator=data)
        loss = nn.functional.cross_entropy(model(pixels[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(step, loss=loss, fed=batch)
    with torch.no_grad():
        scores = model(validation)
    return {
        "accuracy": float((scores.argmax(1) == answers).float().mean()),
        "val_loss": float(nn.functional.cross_entropy(scores, answers)),
    }
