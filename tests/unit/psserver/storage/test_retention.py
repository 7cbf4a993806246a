"""Which checkpoints stay: the newest cuts, of which the shards have a common one, and the newest one that is intact."""

import pytest

from psserver.storage import checkpoints
from psserver.storage.folders import available, found, shard_folder
from psserver.storage.retention import cuts, given_up, move_aside, prune
from tests.support.shards import ShardDriver, declared
from tests.unit.psserver.storage.stored_shards import write


@pytest.fixture
def write_all(tmp_path):
    """A function that writes checkpoints of these numbers of a shard."""

    def write_numbers(*numbers, shard=0, shards=1, **options):
        stored = ShardDriver(declared("W", [1.0, 2.0]), shard=shard, shards=shards).shard
        for number in numbers:
            write(tmp_path, stored, number, **options)

    return write_numbers


def damage(folder, number, name="variables.safetensors", shard=0, shards=1):
    path = shard_folder(folder, number, shard, shards) / name
    path.write_bytes(path.read_bytes()[:-1])


def test_the_newest_stay_and_the_others_go(tmp_path, write_all):
    write_all(5, 1, 20, 3)
    assert prune(tmp_path, 4, 0, 1) == []
    assert prune(tmp_path, 2, 0, 1) == [1, 3]
    assert available(tmp_path, 0, 1) == [5, 20]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000005", "step-000000020"]


@pytest.mark.parametrize("name", ["variables.safetensors", "manifest.json"])
def test_the_newest_intact_one_stays_whatever_came_after_it(tmp_path, write_all, name):
    write_all(1, 2, 3, 4)
    damage(tmp_path, 3, name)
    damage(tmp_path, 4, name)
    prune(tmp_path, 1, 0, 1)
    assert available(tmp_path, 0, 1) == [2, 3, 4]
    assert checkpoints.latest(tmp_path, 0, 1).checkpoint.manifest.number == 2


def test_in_a_folder_that_all_shards_share_nothing_else_is_protected(tmp_path, write_all):
    for shard in range(2):
        write_all(1, 2, 3, 4, shard=shard, shards=2)
    assert prune(tmp_path, 1, 0, 2, protect=2) == [1, 2, 3]


def test_of_what_a_shard_has_given_up_the_newest_stays(tmp_path, write_all):
    write_all(1, 2)
    for timeline, shard in [(2, 0), (2, 1), (10, 0), (11, 1)]:
        write_all(7, shard=shard, shards=2)
        move_aside(tmp_path, timeline, shard_folder(tmp_path, 7, shard, 2))
    (tmp_path / "given-up-2" / "journal-0-of-2").mkdir()
    (tmp_path / "given-up-2" / "shard-0-of-2.json").touch()
    (tmp_path / "given-up-by-me").mkdir()

    def there():
        return {path.name: found(path).get(7, set()) for path in tmp_path.glob("given-up-*")}

    rest = {"given-up-10": {(0, 2)}, "given-up-11": {(1, 2)}, "given-up-by-me": set()}
    prune(tmp_path, 2, 0, 2)
    assert there() == {"given-up-2": {(0, 2), (1, 2)}, **rest}
    prune(tmp_path, 1, 0, 2)
    assert there() == {"given-up-2": {(1, 2)}, **rest}
    prune(tmp_path, 1, 1, 2)
    assert there() == rest


def test_what_is_given_up_twice_in_a_timeline_is_kept_twice(tmp_path, write_all):
    write_all(7)
    assert move_aside(tmp_path, 2, shard_folder(tmp_path, 7, 0, 1)) == tmp_path / "given-up-2"
    write_all(7)
    assert move_aside(tmp_path, 2, shard_folder(tmp_path, 7, 0, 1)) == tmp_path / "given-up-2-2"
    for aside in ("given-up-2", "given-up-2-2"):
        assert available(tmp_path / aside, 0, 1) == [7]


def test_a_flipped_bit_counts_as_damage_only_for_those_who_read_all(tmp_path, write_all):
    write_all(1, 2)
    path = shard_folder(tmp_path, 2, 0, 1) / "variables.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert prune(tmp_path, 1, 0, 1, is_intact=lambda manifest: manifest.number == 1) == []
    assert prune(tmp_path, 1, 0, 1) == [1]


def test_shards_with_one_folder_keep_common_cuts_whoever_is_behind(tmp_path, write_all):
    write_all(1, 2, 3, 4, 5, 6, shard=0, shards=2)
    write_all(1, 2, 3, shard=1, shards=2)
    assert prune(tmp_path, 2, 0, 2) == [1]
    assert available(tmp_path, 0, 2) == [2, 3, 4, 5, 6]
    assert prune(tmp_path, 3, 1, 2) == []  # 1 is no common cut any more
    assert prune(tmp_path, 1, 1, 2) == [1, 2]
    assert available(tmp_path, 0, 2) == [2, 3, 4, 5, 6]


def test_a_shard_with_a_disk_of_its_own_keeps_what_it_is_told_to_protect(tmp_path, write_all):
    write_all(1, 2, 3, 4, 5, shard=1, shards=2)
    assert prune(tmp_path, 1, 1, 2, protect=2) == [1]
    assert prune(tmp_path, 1, 1, 2, protect=7) == [2, 3, 4]


def test_final_checkpoints_of_several_shards_are_no_cuts_and_neither_count_nor_push_cuts_out(tmp_path, write_all):
    write_all(0, shard=0, shards=2, final=True, is_cut=True)  # the first of a job
    write_all(4, 9, shard=0, shards=2)
    write_all(5, 10, 11, 12, shard=0, shards=2, final=True)
    assert cuts(tmp_path, 0, 2) == [0, 4, 9]
    assert prune(tmp_path, 2, 0, 2) == [0]
    assert prune(tmp_path, 1, 0, 2) == [4, 5]
    assert available(tmp_path, 0, 2) == [9, 10, 11, 12]
    damage(tmp_path, 9, "manifest.json", 0, 2)
    assert cuts(tmp_path, 0, 2) == []


def test_a_final_checkpoint_of_one_shard_is_a_cut(tmp_path, write_all):
    write_all(1, 2, final=True)
    assert cuts(tmp_path, 0, 1) == [1, 2]


def test_what_a_timeline_gave_up_came_after_its_cut_in_timelines_before(tmp_path, write_all):
    write_all(1, 2, 3, 4, timeline=3)
    write_all(5, timeline=4)
    damage(tmp_path, 4, "manifest.json")
    assert given_up(tmp_path, 4, 2, 0, 1) == [3]
    assert checkpoints.latest(tmp_path, 0, 1, without=[5, 3]).checkpoint.manifest.number == 2
