from millrace._compat import jax_processes as compat


def test_a_run_of_one_process():
    assert (compat.process_index(), compat.process_count()) == (0, 1)
    assert compat.key_value_store() is None


def test_no_cluster_is_recognised_here(monkeypatch):
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    assert compat.recognise_cluster(None, None, None, None, 1) == (None, None, None, None)


def test_a_cluster_is_recognised(monkeypatch):
    for name, value in {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NODELIST": "node[001-004]",
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "0",
    }.items():
        monkeypatch.setenv(name, value)
    address, count, index, devices = compat.recognise_cluster(None, None, None, None, 1)
    assert address.startswith("node001:")
    assert (count, index, devices) == (4, 2, [0])
