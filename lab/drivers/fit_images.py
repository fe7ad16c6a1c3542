"""Lightning trains a model of torchvision on made-up pictures: python fit_images.py resnet50 224 32
[WORKERS]."""

import sys

import lightning
import torch
import torchvision
from torchvision.transforms import v2


class Classifier(lightning.LightningModule):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.net = torchvision.models.get_model(name, num_classes=100)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


if __name__ == "__main__":
    name, size, batch, workers = sys.argv[1], *map(int, [*sys.argv[2:4], *(sys.argv[4:] or ["0"])])
    crop = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(size),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    pictures = torchvision.datasets.FakeData(20_000, (3, 500, 400), num_classes=100, transform=crop)
    loader = torch.utils.data.DataLoader(pictures, batch_size=batch, shuffle=True, num_workers=workers)
    trainer = lightning.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Classifier(name), loader)
