"""The choice of engine and flags for a model, a use and a hardware, with every reason."""

from __future__ import annotations

from airbundle.choose.plan import plan_engine, read_model
from airbundle.choose.request import AUTO, EnginePlan, Layout, Rejected, Request

__all__ = ["AUTO", "EnginePlan", "Layout", "Rejected", "Request", "plan_engine", "read_model"]
