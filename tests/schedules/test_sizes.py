import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules.task import check_sizes


def test_takes_one_of_each():
    check_sizes("GPipe", num_stages=1, num_micro_batches=1)


def test_names_the_schedule_all_numbers_and_where_they_are_set():
    with pytest.raises(
        ScheduleError,
        match=r"GPipe needs at least one of each: num_stages, num_micro_batches\. Received: "
        r"num_stages=4, num_micro_batches=-2\..*gradient_accumulation_steps_per_replica",
    ):
        check_sizes("GPipe", num_stages=4, num_micro_batches=-2)
