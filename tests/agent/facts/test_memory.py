"""Growth of the memory of this process."""

from __future__ import annotations

import mmap

from dynotune.agent.facts.memory import Memory


def test_shared_memory_is_no_growth_of_the_process():
    memory = Memory()
    memory.begin()
    with mmap.mmap(-1, 64 << 20) as shared:
        shared.write(b"x" * (64 << 20))
        assert memory.facts()["rss_growth_bytes"] < 32 << 20
        own = bytearray(b"x" * (64 << 20))
        assert memory.facts()["rss_growth_bytes"] > 32 << 20
        del own
