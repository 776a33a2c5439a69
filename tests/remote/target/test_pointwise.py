import torch

from dflashctl_remote.target.pointwise import delta_inputs

J, K, V, GROUP, WIDTH = 2, 4, 6, 2, 4
LENGTHS = (5, 1, 2, 6)


def test_the_short_convolution_starts_anew_with_each_document() -> None:
    torch.manual_seed(0)
    num_rows, channels = sum(LENGTHS), J * (2 * K + GROUP * V)
    mixed = torch.randn(num_rows, channels, dtype=torch.float64)
    weight = torch.randn(channels, 1, WIDTH, dtype=torch.float64)
    convolved = []
    for part in mixed.split(LENGTHS):
        padded = torch.nn.functional.pad(part.t()[None], (WIDTH - 1, 0))
        convolved.append(torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight, groups=channels))[0].t())
    q, k, v = torch.cat(convolved).split([J * K, J * K, J * GROUP * V], dim=1)

    parts = mixed.split([J * K, J * K, J * GROUP * V], dim=1)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    gates = torch.zeros(num_rows, J * GROUP, dtype=torch.float64)
    got = delta_inputs(
        tuple(part.unflatten(1, (J, -1)) for part in parts),
        gates,
        gates,
        weight,
        torch.zeros(J * GROUP, dtype=torch.float64),
        torch.zeros(J * GROUP, dtype=torch.float64),
        positions,
    )
    unit = torch.nn.functional.normalize
    assert torch.allclose(got[0], unit(q.unflatten(1, (J, K)), dim=-1), rtol=0, atol=1e-5)
    assert torch.allclose(got[1], unit(k.unflatten(1, (J, K)), dim=-1), rtol=0, atol=1e-5)
    assert torch.allclose(got[2], v.unflatten(1, (J * GROUP, V)), rtol=0, atol=1e-12)
    assert torch.allclose(got[3], torch.full_like(gates, -torch.tensor(2.0).log()), rtol=0, atol=1e-6)
    assert torch.equal(got[4], torch.full_like(gates, 0.5))
