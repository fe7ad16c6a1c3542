"""`loader.batches=by-length`: sequences of like length together, each as often as before."""

import pytest

SEQUENCES = """
import torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
lengths = torch.randint(1, 200, (1003,)).tolist()

class Texts(Dataset):
    num_read = 0
    def __len__(self):
        return len(lengths)
    def __getitem__(self, index):
        self.num_read += 1
        return {"input_ids": list(range(lengths[index])), "index": index}

def collate(samples):
    return [sample["index"] for sample in samples]

def padded(batches):
    return sum(len(batch) * max(lengths[index] for index in batch) for batch in batches) / sum(lengths)
"""


def test_each_sample_comes_once_in_batches_of_the_same_size_with_less_padding(child):
    program = (
        SEQUENCES
        + """
data = Texts()
loader = DataLoader(data, 8, shuffle=True, collate_fn=collate)
first, second = list(loader), list(loader)
out["sizes"] = [len(batch) for batch in first]
out["all"] = sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(1003))
out["mixed"] = first != second
out["padded"] = padded(first)
out["attributes"] = [loader.batch_size, len(loader), type(loader.sampler).__name__]
out["read"] = data.num_read
out["random"] = torch.rand(1).item()
"""
    )
    as_it_is, done = child(program), child(program, "loader.batches=by-length")
    assert as_it_is.out["padded"] > 1.5
    assert done.out.pop("padded") < 1.1
    as_it_is.out.pop("padded")
    # As many samples were read in this process, and as many random numbers drawn.
    assert done.out == as_it_is.out
    assert done.readback["loader.batches"]["ok"] is True


def test_the_programs_own_sampler_says_which_samples_come(child):
    done = child(
        SEQUENCES
        + """
from torch.utils.data import BatchSampler, DistributedSampler, WeightedRandomSampler
own = DistributedSampler(range(1003), num_replicas=2, rank=1, shuffle=True)
wanted = list(own)
own_batches = BatchSampler(own, 8, drop_last=True)
batches = list(DataLoader(Texts(), 8, sampler=own, collate_fn=collate))
out["same"] = sorted(sum(batches, [])) == sorted(wanted)
batches = list(DataLoader(Texts(), batch_sampler=own_batches, collate_fn=collate))
out["dropped"] = sorted(sum(batches, [])) == sorted(wanted[: 8 * (502 // 8)])
own = WeightedRandomSampler([1.0] * 1003, 4000)
twice = list(DataLoader(Texts(), 8, sampler=own, collate_fn=collate))
out["num"] = sum(map(len, twice))
""",
        "loader.batches=by-length",
    )
    assert done.out == {"same": True, "dropped": True, "num": 4000}


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ("DataLoader(Texts(), 8, collate_fn=collate)", "no DataLoader that shuffles"),
        ("DataLoader([torch.zeros(3, 8, 8)] * 20, 4, shuffle=True)", "no sequences"),
        ("DataLoader([[1, 2, 3]] * 20, 4, shuffle=True)", "equally long"),
        ("DataLoader(Endless(), 4, shuffle=True)", "takes longer than"),
    ],
)
def test_a_loader_that_it_does_not_suit_keeps_its_order_and_the_reason_is_told(child, loader, reason):
    done = child(
        SEQUENCES
        + f"""
class Endless(Texts):
    def __len__(self):
        return 10 ** 12
    def __getitem__(self, index):
        return [index]

class Two(torch.utils.data.RandomSampler):
    def __iter__(self):
        return iter(range(8))

loader = {loader}
if len(loader) > 10 ** 6:
    loader = DataLoader(Endless(), 4, sampler=Two(range(8)))
out["num"] = len(list(loader))
""",
        "loader.batches=by-length",
    )
    assert done.out["num"] > 1
    assert done.readback["loader.batches"]["ok"] is False
    assert reason in done.readback["loader.batches"]["detail"]
    assert done.errors() == []


def test_a_sampler_of_no_samples_gives_no_batch(child):
    done = child(
        SEQUENCES
        + """
class Nothing(torch.utils.data.RandomSampler):
    def __len__(self):
        return 0
    def __iter__(self):
        return iter(())

out["num"] = len(list(DataLoader(Texts(), 8, sampler=Nothing(range(8)), collate_fn=collate)))
""",
        "loader.batches=by-length",
    )
    assert done.out["num"] == 0
    assert done.errors() == []


def test_a_sampler_that_is_made_anew_and_samples_that_came_later_keep_their_order(child):
    done = child(
        """
import torch
from torch.utils.data import DataLoader, RandomSampler
rows = [torch.zeros(1 + at % 7) for at in range(40)]
loader = DataLoader(rows, 4, shuffle=True, collate_fn=list)
again = type(loader.batch_sampler)(RandomSampler(rows), batch_size=4, drop_last=False)
out["again"] = sorted(at for batch in again for at in batch) == list(range(40))
out["first"] = sum(len(batch) for batch in loader)
rows += [torch.zeros(3)] * 8
out["later"] = sum(len(batch) for batch in DataLoader(rows, 4, shuffle=True, collate_fn=list))
out["grown"] = sum(len(batch) for batch in loader)
""",
        "loader.batches=by-length",
    )
    assert done.out == {"again": True, "first": 40, "later": 48, "grown": 48}


def test_loaders_are_pickled_and_iterated_by_workers_as_before(child):
    done = child(
        SEQUENCES
        + """
import copy, pickle
loader = DataLoader(list(map(list, map(range, lengths))), 8, shuffle=True, num_workers=2, collate_fn=len)
out["num"] = sum(loader)
out["kind"] = type(pickle.loads(pickle.dumps(loader.batch_sampler))).__name__
""",
        "loader.batches=by-length",
    )
    assert done.out == {"num": 1003, "kind": "BatchSampler"}


@pytest.mark.long
def test_transformers_trainer_gets_batches_by_length_in_its_own_loader(child, tmp_path):
    pytest.importorskip("transformers")
    done = child(
        SEQUENCES
        + f"""
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
tiny = BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
arguments = TrainingArguments({str(tmp_path / "out")!r}, report_to=[], per_device_train_batch_size=8, use_cpu=True)
trainer = Trainer(BertForSequenceClassification(tiny), arguments, train_dataset=Texts(), data_collator=collate)
trainer._signature_columns = ["input_ids", "index"]
loader = trainer.get_train_dataloader()
batches = list(loader)
out["all"] = sorted(sum(batches, [])) == list(range(1003))
out["padded"] = padded(batches)
""",  # noqa: E501
        "loader.batches=by-length",
    )
    assert done.out.pop("padded") < 1.15
    assert done.out == {"all": True}
    assert done.readback["loader.batches"]["ok"] is True
