"""What run.py decides by itself. `python3 -m unittest discover bench/peers`; setup.sh runs it as well."""

import unittest

from peers import PEERS, SETTINGS
from run import JOBS, best, tries


def work(peer, setting, rate, number=0, mode="bulk", what="work"):
    return {"what": what, "peer": peer.name, "round": number, "mode": mode, "setting": setting.words(), "rate": rate}


class Fairness(unittest.TestCase):
    def test_every_peer_has_the_same_number_of_different_settings(self):
        for peer in PEERS:
            self.assertEqual(len({setting.words() for setting in peer.settings}), SETTINGS, peer.name)
            self.assertEqual(len(peer.settings), SETTINGS, peer.name)

    def test_every_peer_has_the_same_number_of_jobs_and_every_setting_its_turn(self):
        for mode in JOBS:
            runs = tries(PEERS, mode, 500)
            self.assertEqual({run.jobs for run in runs}, {500})
            self.assertEqual(len({(run.peer.name, run.setting.words()) for run in runs}), SETTINGS * len(PEERS))
            self.assertEqual([run.peer for run in runs[: len(PEERS)]], PEERS)

    def test_the_clock_stops_by_a_question_to_the_tables_of_every_peer(self):
        for peer in PEERS:
            self.assertIn("select", peer.recorded.format(jobs=7), peer.name)
            self.assertEqual(bool(peer.kept), peer.ended != "deleted", peer.name)


class Choice(unittest.TestCase):
    def test_the_quickest_setting_of_the_first_round_is_kept_for_each_mode(self):
        peer = PEERS[0]
        one, two, three = peer.settings
        lines = [work(peer, one, 10), work(peer, two, 30), work(peer, three, 20), work(peer, one, 99, mode="single")]
        # Neither what others did, nor enqueues, nor later rounds.
        lines += [work(PEERS[1], three, 500), work(peer, three, 500, what="enqueue"), work(peer, three, 500, number=1)]
        self.assertEqual(best(lines, peer, "bulk"), two)
        self.assertEqual(best(lines, peer, "single"), one)

    def test_a_peer_that_never_came_to_an_end_has_none(self):
        self.assertIsNone(best([work(PEERS[0], PEERS[0].settings[0], 10)], PEERS[1], "bulk"))


if __name__ == "__main__":
    unittest.main()
