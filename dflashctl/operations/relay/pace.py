"""How many lanes a relay has. Pure: it is told times and bytes."""

MOST_LANES = 8
WINDOW_RTT_S = 0.012
"""An ssh connection has some 2 MiB under way: for each of these in the round trip one lane more is worth a try."""
NUM_FIRST_LANES = 4
GAIN = 1.1
"""A further lane must have made it so much faster, or none follows."""
LOOK_S = 1.0
"""Over which a rate is taken."""


class Pace:
    """How many lanes: as many as the round trip makes likely, then one more as long as that makes it faster."""

    def __init__(self, given: int | None, rtt_s: float, num_chunks: int) -> None:
        self._most = min(given or MOST_LANES, max(1, num_chunks))
        likely = max(1, min(NUM_FIRST_LANES, round(rtt_s / WINDOW_RTT_S)))
        self.num_first = min(given or likely, self._most)
        self._may_add = given is None and rtt_s > WINDOW_RTT_S / 2
        self._rate = 0.0
        self._since: tuple[float, int] | None = None

    def wants_more(self, now_s: float, sent_bytes: int, num_opened: int, num_started: int) -> bool:
        """Asked again and again; a rate is taken over a time in which all that were started were open."""
        if not self._may_add or num_opened < num_started:
            self._since = None
            return False
        if self._since is None:
            self._since = (now_s, sent_bytes)
            return False
        passed_s = now_s - self._since[0]
        if passed_s < LOOK_S:
            return False
        new = (sent_bytes - self._since[1]) / passed_s
        self._may_add = new > GAIN * self._rate and num_started < self._most
        self._rate, self._since = new, None
        return self._may_add
