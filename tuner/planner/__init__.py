"""Planner, pure: a view of cards, slices and queues becomes a plan of groups. It opens nothing and guards nothing."""

from tuner.planner.plan import make_plan, plan_fast
from tuner.planner.views import CardView, PlannerInput, QueueView, SliceView

__all__ = ["CardView", "PlannerInput", "QueueView", "SliceView", "make_plan", "plan_fast"]
