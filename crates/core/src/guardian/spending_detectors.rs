//! Detectors of costs and tokens that grow faster than planned, and of a context window that is nearly full.

use super::agent_signal::{AgentUsage, ModelUsage};
use super::detectors::WatchedTask;
use super::{Detector, Finding, Thresholds};
use crate::time::Timestamp;
use std::collections::VecDeque;
use std::time::Duration;

/// Costs count over this time, so that a short burst is no finding.
const WINDOW: Duration = Duration::from_secs(10 * 60);
const WINDOWS_PER_HOUR: u64 = 6;
/// Reports within a window; older ones are added up.
const MAX_REPORTS: usize = 64;
/// Share of a cost limit below which its plan says nothing.
const MIN_PLANNED_SHARE: f64 = 0.25;
/// Costs that are this much ahead of the plan are a finding.
const MAX_AHEAD: f64 = 2.0;
/// Percent of the window between two findings about it.
const CONTEXT_STEP: u32 = 4;
/// Reports of short prompts after which the conversation is a new or compacted one.
const MIN_SHORT_PROMPTS: u32 = 5;

/// Costs in millionths of a dollar, and tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    micros: u64,
    tokens: u64,
}

#[derive(Debug, Clone, Copy)]
struct Report {
    at: Timestamp,
    seq: i64,
    amount: Amount,
}

/// Reports of one source within the window.
#[derive(Debug, Default)]
struct Spending {
    reports: VecDeque<Report>,
    total: Amount,
}

impl Spending {
    fn record(&mut self, report: Report) {
        self.total.micros = self.total.micros.saturating_add(report.amount.micros);
        self.total.tokens = self.total.tokens.saturating_add(report.amount.tokens);
        self.reports.push_back(report);
        while self.reports.front().is_some_and(|first| report.at.elapsed_since(first.at) > WINDOW) {
            self.reports.pop_front();
        }
        if self.reports.len() > MAX_REPORTS
            && let Some(first) = self.reports.pop_front()
            && let Some(next) = self.reports.front_mut()
        {
            next.amount.micros = next.amount.micros.saturating_add(first.amount.micros);
            next.amount.tokens = next.amount.tokens.saturating_add(first.amount.tokens);
        }
    }

    fn in_window(&self) -> Amount {
        self.reports.iter().fold(Amount::default(), |sum, report| Amount {
            micros: sum.micros.saturating_add(report.amount.micros),
            tokens: sum.tokens.saturating_add(report.amount.tokens),
        })
    }

    fn seqs(&self) -> impl Iterator<Item = i64> + '_ {
        self.reports.iter().map(|report| report.seq)
    }
}

#[derive(Debug, Default)]
pub(super) struct SpendingDetectors {
    /// The agent reports its own usage, the gateway measures it; neither sees everything.
    of_agent: Spending,
    of_gateway: Spending,
    started: Option<Timestamp>,
    reported_at: Option<Timestamp>,
    is_fast: bool,
    context_percent: u32,
    reported_percent: u32,
    /// Reports in a row of short prompts.
    short_prompts: u32,
}

impl SpendingDetectors {
    pub fn record_agent_usage(
        &mut self,
        seq: i64,
        at: Timestamp,
        usage: &AgentUsage,
        (limits, task): (&Thresholds, &WatchedTask),
    ) -> Option<Finding> {
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens).saturating_add(usage.cache_write_tokens);
        let amount = Amount { micros: to_micros(usage.cost_usd.unwrap_or(0.0)), tokens };
        self.of_agent.record(Report { at, seq, amount });
        self.check_rate(seq, at, limits, task)
    }

    pub fn record_model_usage(
        &mut self,
        seq: i64,
        at: Timestamp,
        usage: &ModelUsage,
        (limits, task): (&Thresholds, &WatchedTask),
    ) -> Vec<Finding> {
        let total = self.of_gateway.total;
        let amount = Amount {
            micros: to_micros(usage.cost_usd).saturating_sub(total.micros),
            tokens: usage.tokens.saturating_sub(total.tokens),
        };
        self.of_gateway.record(Report { at, seq, amount });
        let rate = self.check_rate(seq, at, limits, task);
        rate.into_iter().chain(self.check_context(seq, usage, limits.context_percent)).collect()
    }

    fn check_rate(&mut self, seq: i64, at: Timestamp, limits: &Thresholds, task: &WatchedTask) -> Option<Finding> {
        let started = *self.started.get_or_insert(at);
        let (agent, gateway) = (self.of_agent.in_window(), self.of_gateway.in_window());
        let micros = agent.micros.max(gateway.micros);
        let tokens = agent.tokens.max(gateway.tokens);
        let max_micros = u64::from(limits.cost_usd_per_hour) * 1_000_000 / WINDOWS_PER_HOUR;
        let max_tokens = u64::from(limits.kilotokens_per_hour) * 1000 / WINDOWS_PER_HOUR;
        let total = self.of_agent.total.micros.max(self.of_gateway.total.micros);
        let detail = if micros > max_micros {
            format!(
                "${:.2} within ten minutes; ${} per hour are planned",
                micros as f64 / 1e6,
                limits.cost_usd_per_hour
            )
        } else if tokens > max_tokens {
            let planned = limits.kilotokens_per_hour;
            format!("{tokens} tokens within ten minutes; {planned} thousand per hour are planned")
        } else if let Some(share) = task.share_ahead_of_plan(total, at.elapsed_since(started)) {
            format!("{:.0} % of the cost limit in {:.0} % of the time", share.cost * 100.0, share.time * 100.0)
        } else {
            self.is_fast = false;
            return None;
        };
        self.is_fast = true;
        if self.reported_at.is_some_and(|last| at.elapsed_since(last) < WINDOW) {
            return None;
        }
        self.reported_at = Some(at);
        let seqs: Vec<i64> = if agent.micros >= gateway.micros {
            self.of_agent.seqs().collect()
        } else {
            self.of_gateway.seqs().collect()
        };
        Some(Finding { detail: Some(detail), ..Finding::new(Detector::Spending, seq, "spending", seqs) })
    }

    fn check_context(&mut self, seq: i64, usage: &ModelUsage, at: u32) -> Option<Finding> {
        let context = usage.context.filter(|context| *context > 0)?;
        let percent = u32::try_from(usage.prompt_tokens.saturating_mul(100) / context).unwrap_or(u32::MAX);
        self.context_percent = percent;
        if percent < at {
            // Agents send short prompts between the long ones, for example for a title.
            self.short_prompts += 1;
            if self.short_prompts >= MIN_SHORT_PROMPTS {
                self.reported_percent = 0;
            }
            return None;
        }
        self.short_prompts = 0;
        if self.reported_percent > 0 && percent < self.reported_percent + CONTEXT_STEP {
            return None;
        }
        self.reported_percent = percent;
        Some(Finding { times: Some(percent), ..Finding::new(Detector::ContextFull, seq, "context", [seq]) })
    }

    pub const fn is_fast(&self) -> bool {
        self.is_fast
    }

    pub const fn context_percent(&self) -> u32 {
        self.context_percent
    }

    /// Dollars per hour, from the costs within the window.
    pub fn dollars_per_hour(&self) -> u32 {
        let micros = self.of_agent.in_window().micros.max(self.of_gateway.in_window().micros);
        u32::try_from(micros.saturating_mul(WINDOWS_PER_HOUR) / 1_000_000).unwrap_or(u32::MAX)
    }
}

fn to_micros(dollars: f64) -> u64 {
    (dollars.clamp(0.0, 1e9) * 1e6) as u64
}

/// Shares of the planned cost and time that are used.
struct PlanShare {
    cost: f64,
    time: f64,
}

impl WatchedTask {
    /// The shares of the plan, if the costs are far ahead of it.
    fn share_ahead_of_plan(&self, micros: u64, elapsed: Duration) -> Option<PlanShare> {
        let (limit, time) = (self.cost_limit_micros.filter(|limit| *limit > 0)?, self.time_limit?);
        let cost = micros as f64 / limit as f64;
        let time = elapsed.as_secs_f64() / time.as_secs_f64().max(1.0);
        (cost >= MIN_PLANNED_SHARE && cost > time * MAX_AHEAD).then_some(PlanShare { cost, time })
    }
}
