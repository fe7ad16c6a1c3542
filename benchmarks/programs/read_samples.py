"""Train a small network on one of 24 data sets whose samples take long; or time the loader with and without a
part.

    python read_samples.py NAME [--workers 1] [--seconds 60]       train
    python read_samples.py NAME --truth [--most 8]                 one line of JSON: what each part takes

The data sets were written from a list of what people read from, before the rules that judge them were read.
Files are made once, in the folder that DATA_SETS names. A part is a function, a method or what a library has;
"without" puts in its place what it returned first.
"""

import argparse
import contextlib
import csv
import functools
import gzip
import http.client
import http.server
import importlib
import io
import json
import math
import os
import pickle
import random
import sqlite3
import statistics
import tarfile
import threading
import time
import types
import wave
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

ROOT = Path(os.environ.get("DATA_SETS", "/tmp/data_sets"))
BATCH, ITEMS = 8, 512
DATA_SETS = {}


def data_set(**parts):
    """Register a data set with its parts: name to what is replaced, `module:attribute` or a method of its
    own."""

    def add(kind):
        DATA_SETS[kind.__name__] = kind
        kind.parts = parts
        return kind

    return add


def photo(height, width, seed):
    """Return a picture with edges and noise as photographs have."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // 32 + 1, width // 32 + 1, 3), dtype=np.uint8)
    large = np.kron(small, np.ones((32, 32, 1), dtype=np.uint8))[:height, :width].astype(np.int16)
    return np.clip(large + rng.normal(0, 8, large.shape), 0, 255).astype(np.uint8)


def encoded(picture, form, **options):
    """Return the bytes of a file that holds the picture."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(picture).save(out, form, **options)
    return out.getvalue()


def words(number, seed):
    """Return so many made-up words."""
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(number))


class Items(Dataset):
    """A map-style set of `ITEMS` samples; `make` writes its files, `ready` opens what stays open."""

    collate = None

    def __init__(self, folder):
        self.folder = folder
        self.ready()

    def ready(self):
        """Open nothing."""

    def __len__(self):
        return ITEMS


@data_set(open="h5py:File", read="read", scale="scale")
class hdf5_opened_each_time(Items):
    @staticmethod
    def make(folder):
        import h5py

        with h5py.File(folder / "all.h5", "w") as file:
            for group in range(64):
                for item in range(8):
                    file.create_dataset(f"{group}/{item}", data=np.random.rand(48, 64, 3).astype("f4"))

    def read(self, file, i):
        return file[f"{i % 64}/{i // 64}"][()]

    def scale(self, values):
        return (values - values.mean()) / values.std()

    def __getitem__(self, i):
        import h5py

        file = h5py.File(self.folder / "all.h5", "r", rdcc_nbytes=0)
        values = self.read(file, i)
        return torch.from_numpy(self.scale(values))


@data_set(read="row", noise="numpy.random:normal")
class hdf5_large_chunks(Items):
    @staticmethod
    def make(folder):
        import h5py

        with h5py.File(folder / "all.h5", "w") as file:
            rows = np.random.randint(0, 64, (ITEMS, 32, 64), dtype=np.uint8)
            file.create_dataset("x", data=rows, chunks=(128, 32, 64), compression="gzip", compression_opts=4)

    def ready(self):
        self.file = None

    def row(self, i):
        return self.file["x"][i]

    def __getitem__(self, i):
        import h5py

        if self.file is None:
            self.file = h5py.File(self.folder / "all.h5", "r", rdcc_nbytes=1024)
        row = self.row(i).astype(np.float32)
        return torch.from_numpy(row + np.random.normal(0, 1, row.shape).astype(np.float32))


@data_set(search="fetch", decode="decode")
class tar_searched(Items):
    @staticmethod
    def make(folder):
        with tarfile.open(folder / "all.tar", "w") as tar:
            for i in range(ITEMS):
                data = encoded(photo(64, 64, i), "JPEG")
                info = tarfile.TarInfo(f"images/{i:06}.jpg")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    def decode(self, data):
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    def fetch(self, i):
        with tarfile.open(self.folder / "all.tar") as tar:
            return tar.extractfile(f"images/{i:06}.jpg").read()

    def __getitem__(self, i):
        return torch.from_numpy(self.decode(self.fetch(i)).astype(np.float32))


@data_set(read="get", decode="decode", resize="resize")
class lmdb_pictures(Items):
    @staticmethod
    def make(folder):
        import lmdb

        with lmdb.open(str(folder / "db"), map_size=1 << 30) as env, env.begin(write=True) as put:
            for i in range(ITEMS):
                put.put(str(i).encode(), encoded(photo(384, 512, i % 40), "JPEG", quality=90))

    def ready(self):
        self.env = None

    def get(self, i):
        with self.env.begin() as txn:
            return txn.get(str(i).encode())

    def decode(self, data):
        from PIL import Image

        return Image.open(io.BytesIO(data)).convert("RGB")

    def resize(self, image):
        return image.resize((224, 224))

    def __getitem__(self, i):
        if self.env is None:
            import lmdb

            self.env = lmdb.open(str(self.folder / "db"), readonly=True, lock=False)
        return torch.from_numpy(np.array(self.resize(self.decode(self.get(i))))).float()


@data_set(read="read", convert="convert")
class parquet_row_groups(Items):
    @staticmethod
    def make(folder):
        import pyarrow
        import pyarrow.parquet

        columns = {f"c{n}": np.random.rand(ITEMS * 64) for n in range(24)}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / "all.parquet", row_group_size=2048)

    def ready(self):
        self.file = None

    def read(self, i):
        return self.file.read_row_group(i * 64 // 2048)

    def convert(self, table, i):
        return table.slice(i * 64 % 2048, 64).to_pandas().to_numpy()

    def __getitem__(self, i):
        import pyarrow.parquet

        if self.file is None:
            self.file = pyarrow.parquet.ParquetFile(self.folder / "all.parquet")
        return torch.from_numpy(self.convert(self.read(i), i)).float()


@data_set(read="read", decode="decode", flip="flip")
class zip_of_png(Items):
    @staticmethod
    def make(folder):
        with zipfile.ZipFile(folder / "all.zip", "w") as file:
            for i in range(ITEMS):
                file.writestr(f"{i}.png", encoded(photo(160, 160, i % 50) // 16 * 16, "PNG"))

    def ready(self):
        self.zip = None

    def read(self, i):
        return self.zip.read(f"{i}.png")

    def decode(self, data):
        from PIL import Image

        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))

    def flip(self, pixels):
        return np.ascontiguousarray(pixels[:, ::-1])

    def __getitem__(self, i):
        self.zip = self.zip or zipfile.ZipFile(self.folder / "all.zip")
        return torch.from_numpy(self.flip(self.decode(self.read(i)))).float()


@data_set(rows="rows", distances="distances")
class table_row_by_row(Items):
    @staticmethod
    def make(folder):
        import pandas

        frame = pandas.DataFrame(np.random.rand(4096, 40), columns=[f"c{n}" for n in range(40)])
        frame["name"] = "a"
        frame.to_pickle(folder / "all.pkl")

    def ready(self):
        import pandas

        self.frame = pandas.read_pickle(self.folder / "all.pkl")

    def rows(self, i):
        return [self.frame.iloc[at][:40].astype(float).to_numpy() for at in range(i, i + 8)]

    def distances(self, rows):
        all_rows = np.stack(rows)
        return ((all_rows[:, None] - all_rows[None]) ** 2).sum(-1)

    def __getitem__(self, i):
        return torch.from_numpy(self.distances(self.rows(i))).float()


@data_set(parse="parse", window="window")
class csv_file_each(Items):
    @staticmethod
    def make(folder):
        for i in range(64):
            with (folder / f"{i}.csv").open("w", newline="") as out:
                csv.writer(out).writerows(np.random.rand(400, 8).round(5).tolist())

    def parse(self, i):
        with (self.folder / f"{i % 64}.csv").open(newline="") as lines:
            return np.array([[float(field) for field in row] for row in csv.reader(lines)])

    def window(self, table):
        return np.stack([np.convolve(column, np.ones(9) / 9, mode="same") for column in table.T])

    def __getitem__(self, i):
        return torch.from_numpy(self.window(self.parse(i))).float()


@data_set(read="read", resample="resample", spectrum="spectrum")
class audio_resampled(Items):
    @staticmethod
    def make(folder):
        for i in range(32):
            with wave.open(str(folder / f"{i}.wav"), "wb") as out:
                out.setnchannels(1)
                out.setsampwidth(2)
                out.setframerate(44100)
                out.writeframes(np.random.randint(-9000, 9000, 44100 * 2, dtype=np.int16).tobytes())

    def read(self, i):
        with wave.open(str(self.folder / f"{i % 32}.wav")) as file:
            return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768

    def resample(self, sound):
        from scipy.signal import resample_poly

        return resample_poly(sound, 160, 441)

    def spectrum(self, sound):
        wave_form = torch.from_numpy(np.ascontiguousarray(sound, dtype=np.float32))
        return torch.stft(wave_form, 512, 256, window=torch.hann_window(512), return_complex=True).abs()

    def __getitem__(self, i):
        return self.spectrum(self.resample(self.read(i)))


@data_set(read="read", echo="echo", spectrum="spectrum")
class audio_with_echo(audio_resampled):
    def echo(self, sound):
        room = np.exp(-np.arange(8000) / 800.0).astype(np.float32)
        size = len(sound) + len(room)
        return np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(room, size), size)[: len(sound)]

    def spectrum(self, sound):
        part = torch.as_tensor(np.array(sound[:16000]), dtype=torch.float32)
        return torch.stft(part, 256, 128, window=torch.hann_window(256), return_complex=True).abs()

    def __getitem__(self, i):
        return self.spectrum(self.echo(self.read(i)))


@data_set(frame="frame", resize="cv2:resize")
class video_frame_sought(Items):
    @staticmethod
    def make(folder):
        import cv2

        out = cv2.VideoWriter(str(folder / "v.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 25, (640, 480))
        for i in range(60):
            out.write(photo(480, 640, i))
        out.release()

    def frame(self, i):
        import cv2

        video = cv2.VideoCapture(str(self.folder / "v.avi"))
        video.set(cv2.CAP_PROP_POS_FRAMES, i % 60)
        picture = video.read()[1]
        video.release()
        return picture

    def __getitem__(self, i):
        import cv2

        small = cv2.resize(self.frame(i), (112, 112), interpolation=cv2.INTER_AREA)
        return torch.from_numpy(small).float()


@data_set(encode="encode", mask="mask")
class tokenized_each_time(Items):
    @staticmethod
    def make(folder):
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        texts = [words(300, i) for i in range(100)]
        tokenizer = Tokenizer(models.BPE(unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=800, special_tokens=["?"]))
        tokenizer.save(str(folder / "tokens.json"))
        (folder / "texts.json").write_text(json.dumps(texts))

    def ready(self):
        from tokenizers import Tokenizer

        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.texts = json.loads((self.folder / "texts.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokens.json"))

    def encode(self, i):
        return self.tokenizer.encode(self.texts[i % 100]).ids

    def mask(self, ids):
        return [103 if random.random() < 0.15 else token for token in ids]

    def __getitem__(self, i):
        return torch.tensor(self.mask(self.encode(i))[:400]).float()


def tokenize_batch(texts):
    """Encode by a regular expression and a dictionary, and pad."""
    import re

    rows = [[hash(word) % 5000 for word in re.findall(r"\w+|[^\w\s]", text.lower())] for text in texts]
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows]).float()


@data_set(clean="clean", collate="collate")
class tokenized_in_collate(Items):
    collate = staticmethod(tokenize_batch)

    @staticmethod
    def make(folder):
        (folder / "texts.json").write_text(json.dumps([words(800, i) for i in range(50)]))

    def ready(self):
        self.texts = json.loads((self.folder / "texts.json").read_text())

    def clean(self, text):
        return text.replace("\t", " ").strip()

    def __getitem__(self, i):
        return self.clean(self.texts[i % 50])


class Blur:
    def __call__(self, image):
        import cv2

        return cv2.GaussianBlur(image, (0, 0), 2.0)


class Warp:
    def __call__(self, image):
        import cv2

        height, width = image.shape[:2]
        y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
        x = (x + 4 * np.sin(y / 9.0)).astype(np.float32)
        y = (y + 4 * np.cos(x / 11.0)).astype(np.float32)
        return cv2.remap(image, x, y, cv2.INTER_LINEAR)


class Colours:
    def __call__(self, image):
        import cv2

        changed = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
        changed[..., 0] = (changed[..., 0].astype(int) + 7) % 180
        return cv2.cvtColor(changed, cv2.COLOR_HSV2BGR)


class Chain:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


@data_set(decode="cv2:imread", blur="Blur.__call__", warp="Warp.__call__", colours="Colours.__call__")
class chain_of_augmentations(Items):
    @staticmethod
    def make(folder):
        for i in range(40):
            (folder / f"{i}.jpg").write_bytes(encoded(photo(256, 256, i), "JPEG", quality=90))

    def ready(self):
        self.chain = Chain(Blur(), Warp(), Colours())

    def __getitem__(self, i):
        import cv2

        image = cv2.imread(str(self.folder / f"{i % 40}.jpg"))
        return torch.from_numpy(self.chain(image)).float()


@data_set(decode="decode", rotate="rotate", filter="sharpen")
class chain_of_pillow(chain_of_augmentations):
    def decode(self, i):
        from PIL import Image

        return Image.open(self.folder / f"{i % 40}.jpg").convert("RGB")

    def rotate(self, image):
        from PIL import Image

        return image.rotate(random.uniform(-20, 20), resample=Image.Resampling.BICUBIC)

    def sharpen(self, image):
        from PIL import ImageFilter

        return image.filter(ImageFilter.MedianFilter(3))

    def __getitem__(self, i):
        return torch.from_numpy(np.array(self.sharpen(self.rotate(self.decode(i))))).float()


@data_set(parse="json:loads", vector="vector")
class lines_for_every_worker(IterableDataset):
    collate = None

    def __init__(self, folder):
        self.folder = folder

    @staticmethod
    def make(folder):
        rng = np.random.default_rng(0)
        with (folder / "all.jsonl").open("w") as out:
            for _ in range(600):
                out.write(json.dumps({"x": rng.random(2000).tolist(), "y": 1}) + "\n")

    def vector(self, record):
        return torch.tensor(record["x"]).view(-1, 8).softmax(-1)

    def __iter__(self):
        with (self.folder / "all.jsonl").open() as lines:
            for line in lines:
                record = json.loads(line)
                yield self.vector(record)


@data_set(first="check", second="load", features="features")
class json_parsed_twice(Items):
    @staticmethod
    def make(folder):
        rng = random.Random(0)
        for i in range(50):
            points = [{"x": rng.random(), "y": rng.random(), "tags": ["a", "b"]} for _ in range(1500)]
            (folder / f"{i}.json").write_text(json.dumps({"points": points}))

    def check(self, text):
        return "points" in json.loads(text)

    def load(self, text):
        return json.loads(text)["points"]

    def features(self, points):
        return np.array([[each["x"], each["y"], len(each["tags"])] for each in points], dtype=np.float32)

    def __getitem__(self, i):
        text = (self.folder / f"{i % 50}.json").read_text()
        if not self.check(text):
            raise ValueError("no points")
        return torch.from_numpy(self.features(self.load(text)))


@data_set(copy="select", normalise="normalise")
class whole_array_copied(Items):
    @staticmethod
    def make(folder):
        np.save(folder / "all.npy", np.random.rand(ITEMS, 4096).astype(np.float32))

    def ready(self):
        self.values = np.load(self.folder / "all.npy")

    def select(self, i):
        return np.array(self.values, dtype=np.float64)[i]

    def normalise(self, row):
        return (row - row.mean()) / (row.std() + 1e-6)

    def __getitem__(self, i):
        return torch.from_numpy(self.normalise(self.select(i))).float()


@data_set(inflate="gzip:decompress", unpickle="pickle:loads", stack="stack")
class pickles_in_gzip(Items):
    @staticmethod
    def make(folder):
        rng = np.random.default_rng(0)
        for i in range(40):
            rows = [rng.integers(0, 50, 700).astype(np.uint8) for _ in range(400)]
            (folder / f"{i}.pkl.gz").write_bytes(gzip.compress(pickle.dumps(rows), 5))

    def stack(self, rows):
        return np.stack(rows).astype(np.float32)

    def __getitem__(self, i):
        data = gzip.decompress((self.folder / f"{i % 40}.pkl.gz").read_bytes())
        rows = pickle.loads(data)
        return torch.from_numpy(self.stack(rows))


@data_set(load="load", fourier="numpy.fft:rfft2")
class npz_compressed(Items):
    @staticmethod
    def make(folder):
        rng = np.random.default_rng(0)
        for i in range(40):
            np.savez_compressed(folder / f"{i}.npz", x=rng.integers(0, 100, (256, 256)).astype(np.int32))

    def load(self, i):
        with np.load(self.folder / f"{i % 40}.npz") as archive:
            return archive["x"]

    def __getitem__(self, i):
        spectrum = np.fft.rfft2(self.load(i).astype(np.float32))
        return torch.from_numpy(np.abs(spectrum)).float()


@data_set(query="query", decode="numpy:frombuffer")
class rows_of_sqlite(Items):
    @staticmethod
    def make(folder):
        rng = np.random.default_rng(0)
        with contextlib.closing(sqlite3.connect(folder / "all.db")) as db:
            db.execute("create table samples (name text, x blob)")
            rows = ((f"n{i}", rng.random(1000).astype(np.float32).tobytes()) for i in range(ITEMS * 4))
            db.executemany("insert into samples values (?, ?)", rows)
            db.commit()

    def ready(self):
        self.db = None

    def query(self, i):
        return self.db.execute("select x from samples where name = ?", (f"n{i}",)).fetchone()[0]

    def __getitem__(self, i):
        self.db = self.db or sqlite3.connect(self.folder / "all.db")
        return torch.from_numpy(np.frombuffer(self.query(i), np.float32).copy()).sqrt()


def pad_in_python(rows):
    """Pad one value at a time."""
    longest = max(len(row) for row in rows)
    out = torch.zeros(len(rows), longest)
    for at, row in enumerate(rows):
        for place in range(0, len(row), 4):
            out[at, place] = float(row[place])
    return out


@data_set(make="numbers", collate="collate")
class padded_by_a_loop(Items):
    collate = staticmethod(pad_in_python)

    @staticmethod
    def make(folder):
        np.save(folder / "lengths.npy", np.random.default_rng(0).integers(300, 900, ITEMS))

    def ready(self):
        self.lengths = np.load(self.folder / "lengths.npy")

    def numbers(self, i):
        return np.sort(np.random.rand(int(self.lengths[i]))).tolist()

    def __getitem__(self, i):
        return self.numbers(i)


class Slow(http.server.BaseHTTPRequestHandler):
    """A store at some distance: it answers after 4 ms."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(0.004)
        data = PICTURE
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Say nothing."""


PICTURE = b""


@data_set(fetch="fetch", decode="decode")
class remote_store(Items):
    @staticmethod
    def make(folder):
        (folder / "one.jpg").write_bytes(encoded(photo(128, 128, 0), "JPEG"))

    def ready(self):
        global PICTURE
        PICTURE = (self.folder / "one.jpg").read_bytes()
        here, there = os.pipe()
        if os.fork() == 0:
            os.close(here)
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
            os.write(there, str(server.server_port).encode())
            os.close(there)
            parent = os.getppid()
            threading.Thread(target=server.serve_forever, daemon=True).start()
            while os.getppid() == parent:
                time.sleep(0.5)
            os._exit(0)
        os.close(there)
        self.port = int(os.read(here, 16))
        os.close(here)

    def fetch(self, i):
        link = http.client.HTTPConnection("127.0.0.1", self.port)
        link.request("GET", f"/{i}")
        data = link.getresponse().read()
        link.close()
        return data

    def decode(self, data):
        import cv2

        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)

    def __getitem__(self, i):
        return torch.from_numpy(self.decode(self.fetch(i))).float()


@data_set(window="window", jitter="jitter")
class windows_of_a_memory_map(Items):
    @staticmethod
    def make(folder):
        np.save(folder / "series.npy", np.random.rand(200_000, 16).astype(np.float32))

    def ready(self):
        self.series = np.load(self.folder / "series.npy", mmap_mode="r")

    def window(self, i):
        at = i * 300
        return np.stack([np.median(self.series[at + k : at + k + 50], axis=0) for k in range(0, 400, 4)])

    def jitter(self, values):
        return values * np.random.uniform(0.9, 1.1, values.shape) + np.random.normal(0, 0.01, values.shape)

    def __getitem__(self, i):
        return torch.from_numpy(self.jitter(self.window(i))).float()


def build(name):
    """Return the data set, with its files made."""
    kind = DATA_SETS[name]
    folder = ROOT / next(each.__name__ for each in kind.__mro__ if "make" in vars(each))
    if not (folder / "made").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        kind.make(folder)
        (folder / "made").touch()
    return kind(folder)


def loader_of(samples, workers, generator=None):
    """Return a loader as the programs of most people have it."""
    shuffle = None if isinstance(samples, IterableDataset) else True
    collate = type(samples).collate
    return DataLoader(
        samples, BATCH, shuffle=shuffle, num_workers=workers, collate_fn=collate, generator=generator
    )


def train(samples, workers, seconds):
    """Train until the time is over."""
    loader = loader_of(samples, workers)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for batch in loader:
            optimizer.zero_grad()
            model(batch.reshape(-1)[:64].float()).square().mean().backward()
            optimizer.step()
            if time.monotonic() > end:
                break


class Part:
    """Something that may be left out: then what it returned first stands in its place."""

    def __init__(self, kind, target):
        if ":" in target:
            module, _, self.name = target.partition(":")
            self.owner = importlib.import_module(module)
        else:
            first, _, name = target.rpartition(".")
            self.owner, self.name = (globals()[first] if first else kind), name
        self.is_out, self.inside_s, self.known = False, 0.0, []
        self.own = vars(self.owner).get(self.name)

    def __enter__(self):
        before = getattr(self.owner, self.name)

        @functools.wraps(before)
        def instead(*args, **options):
            if self.is_out:
                return self.known[0]
            begin = time.perf_counter()
            value = before(*args, **options)
            self.inside_s += time.perf_counter() - begin
            if not self.known:
                self.known.append(value)
            return value

        setattr(
            self.owner, self.name, staticmethod(instead) if isinstance(self.own, staticmethod) else instead
        )
        return self

    def __exit__(self, *_):
        if self.own is None:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.own)


def running_s():
    """Return a clock that stands still while this thread waits for a core, which others on the machine
    take."""
    waited_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.perf_counter() - waited_ns / 1e9


@contextlib.contextmanager
def as_in_a_worker(samples):
    """Have batches made on one thread and put into shared memory."""
    torch.set_num_threads(1)
    torch.utils.data._utils.worker._worker_info = types.SimpleNamespace(
        id=0, num_workers=1, dataset=samples, seed=0
    )
    try:
        yield
    finally:
        torch.utils.data._utils.worker._worker_info = None


def batches(samples):
    """Yield batches without end, of the same items each time that this is called."""
    loader = loader_of(samples, 0, torch.Generator().manual_seed(0))
    while True:
        yield from loader


def middle(values):
    """Return the median with a 95% interval by ranks, of no assumption about the distribution."""
    values = sorted(values)
    off = math.sqrt(len(values)) * 0.98
    low, high = math.floor(len(values) / 2 - off), math.ceil(len(values) / 2 + off)
    return statistics.median(values), [values[max(0, low)], values[min(len(values) - 1, high)]]


def share_of(part, samples, seconds):
    """Return the share of a batch's time that goes with a part, by pairs of batches of the same items, by
    turns.

    Drawn until the interval is 3% wide, or the time is over.
    """
    arms = {False: batches(samples), True: batches(samples)}
    pairs, inside, end = [], [], time.monotonic() + seconds
    while True:
        took_s = {}
        for is_out in (False, True) if len(pairs) % 2 == 0 else (True, False):
            part.is_out, part.inside_s = is_out and bool(part.known), 0.0
            begin, began = running_s(), time.perf_counter()
            batch = next(arms[is_out])
            took_s[is_out] = running_s() - begin
            if not is_out:
                inside.append(part.inside_s / (time.perf_counter() - began))
            del batch
        pairs.append((took_s[False], took_s[True]))
        settled = [1 - without_s / with_s for with_s, without_s in pairs[2:]]
        if len(settled) >= 16 and len(settled) % 8 == 0:
            share, interval = middle(settled)
            if interval[1] - interval[0] <= 0.03 or time.monotonic() > end:
                whole_s = statistics.median(pair[0] for pair in pairs[2:])
                told = {"share": share, "interval": interval, "num_pairs": len(settled)}
                return whole_s, {**told, "inside": statistics.median(inside[2:])}


def truth(name, seconds):
    """Return the share of a sample's time that goes with each part, and the share of it that is spent inside
    of it.

    A call that another part makes dearer or cheaper has no share of its own: shares then add up to more than
    all.
    """
    samples = build(name)
    batch_s, parts = [], {}
    with as_in_a_worker(samples):
        for name_of, target in type(samples).parts.items():
            with Part(type(samples), target) as part:
                whole_s, parts[name_of] = share_of(part, samples, seconds)
                batch_s.append(whole_s)
    return {"sample_s": statistics.median(batch_s) / BATCH, "parts": parts}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=DATA_SETS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--most", type=float, default=8, help="seconds for the truth of one part")
    given = parser.parse_args()
    torch.manual_seed(0)
    if given.truth:
        print(json.dumps(truth(given.name, given.most)))
        return
    train(build(given.name), given.workers, given.seconds)


if __name__ == "__main__":
    main()
