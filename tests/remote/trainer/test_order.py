import random
import sys
import threading
from itertools import islice

import pytest

from dflashctl_remote.trainer.order import Order
from dflashctl_remote.trainer.queues import BoundedQueue, Closed, ReorderBuffer


def test_the_order_is_known_without_torch():
    import subprocess

    code = "import sys, dflashctl_remote.trainer.order, dflashctl_remote.trainer.stages; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_batch_of_a_step_belongs_to_one_process(world_size):
    orders = [Order(8, rank=rank, world_size=world_size) for rank in range(world_size)]
    for first in (0, 8, 80):
        taken = [list(order.batches_of_step(first)) for order in orders]
        assert sorted(batch for mine in taken for batch in mine) == list(range(first, first + 8))
        assert len({len(mine) for mine in taken}) == 1


def test_a_resume_continues_the_same_row_of_batches():
    order = Order(4, rank=1, world_size=2)
    whole = list(islice(order.batches_from(0), 10))
    assert whole == [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]
    assert list(islice(order.batches_from(8), 6)) == whole[4:]


def test_batch_n_goes_to_drafter_n_mod_m():
    assert [Order(6, num_drafters=3).drafter_of(batch) for batch in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("seed", range(10))
def test_whatever_the_threads_do_items_leave_by_their_place(seed):
    draw = random.Random(seed)
    num_items, window, num_workers = 60, draw.randint(1, 5), draw.randint(1, 6)
    rows: BoundedQueue[int] = BoundedQueue(draw.randint(1, 4))
    buffer: ReorderBuffer[int] = ReorderBuffer(window)
    deepest = []

    def feed():
        for place in range(num_items):
            rows.put(place)

    def work():
        try:
            while True:
                place = rows.get()
                for _ in range(draw.randint(0, 200)):
                    pass
                buffer.put(place, place * 10)
                deepest.append(buffer.depth)
        except Closed:
            return

    threads = [threading.Thread(target=feed), *(threading.Thread(target=work) for _ in range(num_workers))]
    for thread in threads:
        thread.start()
    assert [buffer.get() for _ in range(num_items)] == [place * 10 for place in range(num_items)]
    rows.close()
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert max(deepest) <= window


def test_a_full_queue_holds_up_whoever_puts_until_it_is_closed():
    queue: BoundedQueue[int] = BoundedQueue(1)
    queue.put(1)
    ended = []

    def put():
        try:
            queue.put(2)
        except Closed:
            ended.append(True)

    thread = threading.Thread(target=put)
    thread.start()
    assert queue.depth == 1
    queue.close()
    thread.join(timeout=10)
    assert ended
    with pytest.raises(Closed):
        queue.get()


def test_the_item_that_is_next_always_finds_room():
    buffer: ReorderBuffer[str] = ReorderBuffer(2)
    buffer.put(1, "b")
    held_up = threading.Thread(target=buffer.put, args=(2, "c"))
    held_up.start()
    buffer.put(0, "a")
    assert [buffer.get(), buffer.get(), buffer.get()] == ["a", "b", "c"]
    held_up.join(timeout=10)
