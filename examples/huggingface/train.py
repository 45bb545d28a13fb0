"""A Hugging Face Trainer script. Settings come from the study; the callback reports everything that the Trainer logs."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import ablationlab as lab

with lab.current_run() as run:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, run.settings["model"]["vocab_size"], (320, 32), generator=generator)
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(**run.settings["model"])),
        args=TrainingArguments(
            output_dir=str(run.folder / "trainer"),
            seed=run.seed,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=run.device == "cpu",
            **run.settings["training"],
        ),
        train_dataset=rows[:256],
        eval_dataset=rows[256:],
        callbacks=[lab.huggingface_callback(run)],
    )
    trainer.train()
    trainer.evaluate()
