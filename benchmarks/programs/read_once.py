"""Train a small network on a table or on sound, read as it often is and as the guide says.

    python read_once.py table rows|arrays [--seconds 60]
    python read_once.py sound each|once [--seconds 60]

Files are made once, in the folder that DATA_SETS names.
"""

import argparse

import numpy as np
import read_samples
import torch


class Table(read_samples.table_row_by_row):
    """Windows of eight rows of numbers: cut out of a frame, or of an array made of it once."""

    def __init__(self, folder, how):
        super().__init__(folder)
        columns = self.frame.columns[:40]
        self.values = self.frame[columns].to_numpy(np.float32) if how == "arrays" else None

    def rows(self, i):
        if self.values is None:
            return super().rows(i)
        return self.values[i : i + 8]


class Sound(read_samples.audio_resampled):
    """Spectra of sound at 16 kHz: resampled for each item, or once, into files beside those that were
    given."""

    def __init__(self, folder, how):
        super().__init__(folder)
        self.once = [folder / f"{i}-16000.npy" for i in range(32)] if how == "once" else []
        for i, path in enumerate(self.once):
            if not path.is_file():
                np.save(path, self.resample(self.read(i)))

    def __getitem__(self, i):
        if not self.once:
            return super().__getitem__(i)
        return self.spectrum(np.load(self.once[i % 32]))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("table", "sound"))
    parser.add_argument("how", choices=("rows", "arrays", "each", "once"))
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    torch.manual_seed(0)
    own = Table if given.kind == "table" else Sound
    folder = read_samples.build(own.__mro__[1].__name__).folder
    read_samples.train(own(folder, given.how), 1, given.seconds)


if __name__ == "__main__":
    main()
