"""A usual accelerate training: prepare, accumulate, clip, gather metrics. Rank 0 prints the losses."""
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
accelerator = Accelerator(gradient_accumulation_steps=2)
set_seed(11)
features = torch.randn(256, 12)
labels = (features.sum(dim=1) > 0).long()
loader = DataLoader(TensorDataset(features, labels), batch_size=8, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for epoch in range(3):
    model.train()
    losses = []
    for inputs, wanted in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), wanted)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather_for_metrics(loss.detach().reshape(1)))
    model.eval()
    right = 0
    with torch.no_grad():
        for inputs, wanted in loader:
            guess, truth = accelerator.gather_for_metrics((model(inputs).argmax(dim=1), wanted))
            right += int((guess == truth).sum())
    accelerator.print(f"epoch {epoch} loss {torch.cat(losses).mean().item().hex()} right {right}",
                      flush=True)
accelerator.wait_for_everyone()
accelerator.print("processes", accelerator.num_processes, flush=True)
