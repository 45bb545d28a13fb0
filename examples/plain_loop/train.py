"""A plain PyTorch loop. `ablationlab run` starts it once per arm and seed; four lines report to the study."""

import torch

import ablationlab as lab

with lab.current_run() as run:  # seeds Python, numpy and torch
    training = run.settings["training"]
    width = run.settings["model"]["width"]
    model = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=training["lr"], momentum=training["momentum"])
    run.started(model)  # hashes of the initial weights

    def loss_on(points: torch.Tensor) -> torch.Tensor:
        target = (points[:, :1] * points[:, 1:]).sin()
        return (model(points) - target).square().mean()

    for step in run.steps(model=model, optimizer=optimizer):  # saves, resumes, stops on Ctrl-C
        batch = torch.randn(training["batch"], 2)
        loss = loss_on(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(step, loss=loss, fed=batch)  # `fed` checks that all arms see the same data

    validation = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    run.finish(val_loss=loss_on(validation))
