"""The demo: two simulated days of a shared fleet, once as its owners set it up, once with the tuner in closed loop."""

from dashboard.demo.board import print_board
from dashboard.demo.runs import DemoResult, RunResult, run_demo

__all__ = ["DemoResult", "RunResult", "print_board", "run_demo"]
