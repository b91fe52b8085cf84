"""Proof that a started release answers: readiness, smoke tests, and what its log says of silent downgrades."""

from airbundle_onsite.smoke.latency import latency_check, measure_latency
from airbundle_onsite.smoke.patterns import scan_log
from airbundle_onsite.smoke.ready import wait_ready
from airbundle_onsite.smoke.run import run_smoke

__all__ = ["latency_check", "measure_latency", "run_smoke", "scan_log", "wait_ready"]
