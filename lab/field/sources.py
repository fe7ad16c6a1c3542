"""The repositories of the programs: which revision, which files, and how they come beside the project."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

REVISION = ".revision"
"""File of an exported folder: the revision that it holds."""


@dataclass(frozen=True)
class Source:
    """A repository on GitHub.

    Args:
        keep: files and folders that programs need; the others are not exported, so that a folder stays small.
        omit: files and folders among these that are large and that no program needs.
    """

    repository: str
    revision: str
    keep: tuple[str, ...]
    omit: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.repository.rpartition("/")[2]

    def folder(self, sources: Path) -> Path:
        return sources / self.name

    def is_there(self, sources: Path) -> bool:
        said = self.folder(sources) / REVISION
        return said.is_file() and said.read_text().strip() == self.revision


_EXAMPLES = ("dcgan", "fast_neural_style", "gat", "imagenet", "mnist", "mnist_rnn", "siamese_network",
             "super_resolution", "vae", "word_language_model", "distributed/minGPT-ddp")  # fmt: skip
_TORCHBENCH_MODELS = (
    "BERT_pytorch",
    "LearningToPaint",
    "alexnet",
    "basic_gnn_gcn",
    "dcgan",
    "functorch_dp_cifar10",
    "hf_Bert",
    "hf_GPT2",
    "lennard_jones",
    "mobilenet_v2",
    "nvidia_deeprecommender",
    "phlippe_resnet",
    "pytorch_unet",
    "resnet50",
    "squeezenet1_1",
    "vgg16",
)
SOURCES = {
    source.repository: source
    for source in (
        Source(
            "karpathy/nanoGPT",
            "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
            ("train.py", "model.py", "configurator.py", "config", "LICENSE"),
        ),
        Source(
            "karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26", ("mingpt", "projects", "LICENSE")
        ),
        Source(
            "karpathy/makemore",
            "988aa59e4d8fefa526d06f3b453ad116258398d4",
            ("makemore.py", "names.txt", "LICENSE"),
        ),
        Source(
            "karpathy/ng-video-lecture", "52201428ed7b46804849dea0b3ccf0de9df1a5c3", ("bigram.py", "gpt.py")
        ),
        Source(
            "pytorch/examples",
            "77f55b912142e11fcfdf5b530231fb9c52f181e8",
            (*_EXAMPLES, "LICENSE"),
            ("fast_neural_style/images", "word_language_model/data", "distributed/minGPT-ddp/mingpt/data"),
        ),
        Source(
            "pytorch/benchmark",
            "0e83c440a51cd63464fee34724d01b7c814ce39b",
            (
                "run.py",
                "utils",
                "LICENSE",
                "torchbenchmark/__init__.py",
                "torchbenchmark/tasks.py",
                "torchbenchmark/e2e.py",
                "torchbenchmark/util",
                "torchbenchmark/_components",
                "torchbenchmark/e2e_models",
                "torchbenchmark/models/__init__.py",
                "torchbenchmark/canary_models/__init__.py",
                *(f"torchbenchmark/models/{model}" for model in _TORCHBENCH_MODELS),
            ),
        ),
        Source("mlfoundations/open_clip", "89fb801f1e6087880e951fc8354b8a2077b79c6d", ("src", "LICENSE")),
        Source(
            "KellerJordan/cifar10-airbench",
            "f1c599c4af24aca803e3e65a6a7e52a502e09d0e",
            ("legacy", "airbench94_muon.py", "LICENSE"),
        ),
        Source(
            "lucidrains/x-transformers",
            "9252ed7838021ee61e6c5be0930b3a9a88efdf06",
            ("x_transformers", "train_enwik8.py", "train_copy.py", "LICENSE"),
        ),
        Source(
            "lucidrains/denoising-diffusion-pytorch",
            "faed4db28e724735323fa91c70aa9b28a6e1cbac",
            ("denoising_diffusion_pytorch", "LICENSE"),
        ),
        Source(
            "milesial/Pytorch-UNet",
            "21d7850f2af30a9695bbeea75f3136aa538cfc4a",
            ("train.py", "evaluate.py", "unet", "utils", "LICENSE"),
        ),
        Source(
            "huggingface/pytorch-image-models",
            "aa4b5850c1543fa488abf260f18390eda46cf85d",
            ("train.py", "timm", "LICENSE"),
        ),
        Source("huggingface/transformers", "v5.17.0", ("examples/pytorch/language-modeling", "LICENSE")),
        Source(
            "Lightning-AI/pytorch-lightning",
            "7f0c3436cd3f6ad3753125672024fc415cbcb414",
            ("examples/pytorch/domain_templates", "LICENSE"),
        ),
    )
}


def export(source: Source, sources: Path, mirror: Path | None) -> str | None:
    """Put the files of a source at its revision into its folder; return why that failed, or None.

    Args:
        mirror: folder with git directories OWNER+NAME/repo, in place of GitHub.
    """
    if source.is_there(sources):
        return None
    with tempfile.TemporaryDirectory() as there:
        at = source.revision
        if mirror is not None:
            git_dir = mirror / source.repository.replace("/", "+") / "repo"
        else:
            git_dir = Path(there) / "repo"
            address = f"https://github.com/{source.repository}"
            for words in (
                ["init", "--quiet", "--bare", str(git_dir)],
                ["--git-dir", str(git_dir), "fetch", "--quiet", "--depth", "1", address, source.revision],
            ):
                if reason := _git(words)[1]:
                    return reason
            # A tag that is fetched by its name alone has no name here.
            at = "FETCH_HEAD"
        listed, reason = _git(["--git-dir", str(git_dir), "ls-tree", "--name-only", at])
        if reason:
            return reason
        known = set(listed.decode().split())
        paths = [path for path in source.keep if path.split("/")[0] in known]
        left_out = [f":(exclude){path}" for path in source.omit]
        packed, reason = _git(["--git-dir", str(git_dir), "archive", at, "--", *paths, *left_out])
        if reason:
            return reason
    folder = source.folder(sources)
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
    (folder / REVISION).write_text(source.revision + "\n")
    return None


def _git(words: list[str]) -> tuple[bytes, str]:
    """What git wrote, and why it failed, "" where it did not."""
    ran = subprocess.run(["git", *words], capture_output=True)
    return ran.stdout, "" if ran.returncode == 0 else ran.stderr.decode(errors="replace").strip()[-300:]
