//! What sandboxes use, seen from outside, as a series: the last hour in memory.

use crate::problem::Result;
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Provider, ProviderId, Usage};
use atoll_core::sandbox::SandboxState;
use atoll_core::time::Timestamp;
use atoll_store::sandboxes::{self, Filter};
use serde::Serialize;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often it is looked.
pub const STEP: Duration = Duration::from_secs(10);
/// As many are kept of each sandbox: an hour.
const KEPT: usize = 360;
const AT_ONCE: i64 = 100;

/// What a sandbox used at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Point {
    pub at: Timestamp,
    /// Processors in use since the point before, 1.5 is one and a half.
    pub cpu: Option<f64>,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub pids: u64,
    /// In and out since it began.
    pub network_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    point: Point,
    cpu_seconds: f64,
}

#[derive(Debug, Default)]
pub struct Samples {
    of: Mutex<HashMap<SandboxId, VecDeque<Seen>>>,
}

impl Samples {
    fn locked(&self) -> MutexGuard<'_, HashMap<SandboxId, VecDeque<Seen>>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, sandbox: SandboxId, at: Timestamp, usage: Usage) -> Point {
        let mut all = self.locked();
        let series = all.entry(sandbox).or_default();
        let cpu = series.back().and_then(|last| {
            let passed = at.elapsed_since(last.point.at).as_secs_f64();
            (passed > 0.0).then(|| ((usage.cpu_seconds - last.cpu_seconds) / passed).max(0.0))
        });
        let Usage { cpu_seconds, memory_bytes, disk_bytes, pids, network_bytes } = usage;
        let point = Point { at, cpu, memory_bytes, disk_bytes, pids, network_bytes };
        series.push_back(Seen { point, cpu_seconds });
        while series.len() > KEPT {
            series.pop_front();
        }
        point
    }

    /// The points since then, each the mean of `step`.
    pub fn series(&self, sandbox: SandboxId, since: Option<Timestamp>, step: Duration) -> Vec<Point> {
        let all = self.locked();
        let points = all.get(&sandbox).into_iter().flatten().map(|seen| seen.point);
        mean(points.filter(|point| since.is_none_or(|since| point.at >= since)), step)
    }

    /// Those that are gone take no room.
    fn keep_only(&self, living: &HashSet<SandboxId>) {
        self.locked().retain(|sandbox, _| living.contains(sandbox));
    }
}

/// One point for each stretch of `step`, at its end.
fn mean(points: impl Iterator<Item = Point>, step: Duration) -> Vec<Point> {
    let length = i64::try_from(step.as_micros()).unwrap_or(i64::MAX).max(1);
    let mut groups: Vec<(i64, Vec<Point>)> = Vec::new();
    for point in points {
        let group = point.at.as_micros() / length;
        match groups.last_mut() {
            Some((last, points)) if *last == group => points.push(point),
            _ => groups.push((group, vec![point])),
        }
    }
    groups.into_iter().filter_map(|(_, points)| mean_of(&points)).collect()
}

fn mean_of(points: &[Point]) -> Option<Point> {
    let last = *points.last()?;
    let count = u64::try_from(points.len()).unwrap_or(1).max(1);
    let whole = |figure: fn(&Point) -> u64| points.iter().map(figure).sum::<u64>() / count;
    let cpu: Vec<f64> = points.iter().filter_map(|point| point.cpu).collect();
    // A handful of points: exact.
    let parts = f64::from(u32::try_from(cpu.len()).unwrap_or(u32::MAX));
    Some(Point {
        cpu: (!cpu.is_empty()).then(|| cpu.iter().sum::<f64>() / parts),
        memory_bytes: whole(|point| point.memory_bytes),
        disk_bytes: whole(|point| point.disk_bytes),
        pids: whole(|point| point.pids),
        ..last
    })
}

/// What it uses now, and a point of its series.
pub async fn now(app: &App, provider: &dyn Provider, sandbox: SandboxId, place: &ProviderId) -> Result<Point> {
    let mut usage = provider.resources(place).await?;
    usage.network_bytes = usage.network_bytes.max(app.egress.bytes(sandbox));
    Ok(app.samples.add(sandbox, app.clock.now(), usage))
}

/// Looks at every running sandbox, until the server stops.
pub async fn watch(app: Arc<App>) {
    let mut stopping = app.stopping.clone();
    let mut clock = tokio::time::interval(STEP);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = clock.tick() => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
        if let Err(problem) = look(&app).await {
            tracing::debug!(detail = %problem.detail, "could not look at what sandboxes use");
        }
    }
}

async fn look(app: &App) -> Result<()> {
    let providers = app.providers()?;
    let mut living = HashSet::new();
    let mut before: Option<String> = None;
    loop {
        let filter = Filter { state: Some(SandboxState::Running), ..Filter::default() };
        let place = before.clone();
        let found = app
            .read(move |tx| Box::pin(async move { Ok(sandboxes::list(tx, &filter, place.as_deref(), AT_ONCE).await?) }))
            .await?;
        let Some(last) = found.last() else { break };
        before = Some(last.id.to_string());
        for row in found {
            let Some(name) = row.provider_id.filter(|_| row.server_id.as_deref() == Some(app.server_id.as_str()))
            else {
                continue;
            };
            living.insert(row.id);
            // One that can't be measured now has a gap, as it should.
            drop(now(app, providers.get(row.provider), row.id, &ProviderId(name)).await);
        }
    }
    app.samples.keep_only(&living);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cpu_seconds: f64, memory_bytes: u64) -> Usage {
        Usage { cpu_seconds, memory_bytes, ..Usage::default() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn processors_are_counted_between_two_points() {
        let (samples, sandbox) = (Samples::default(), SandboxId::new());
        assert_eq!(samples.add(sandbox, at(0), usage(5.0, 1)).cpu, None);
        assert_eq!(samples.add(sandbox, at(10), usage(20.0, 1)).cpu, Some(1.5));
        assert_eq!(samples.add(sandbox, at(20), usage(1.0, 1)).cpu, Some(0.0), "a counter that began anew");
    }

    #[test]
    fn a_longer_step_gives_means_and_only_an_hour_is_kept() {
        let (samples, sandbox) = (Samples::default(), SandboxId::new());
        for second in 0..4_000 {
            samples.add(sandbox, at(second), usage(0.0, u64::try_from(second).unwrap()));
        }
        let all = samples.series(sandbox, None, Duration::from_secs(1));
        assert_eq!((all.len(), all[0].at), (KEPT, at(3640)));
        let means = samples.series(sandbox, Some(at(3980)), Duration::from_secs(10));
        assert_eq!(means.iter().map(|point| point.memory_bytes).collect::<Vec<_>>(), [3984, 3994]);
        samples.keep_only(&HashSet::new());
        assert_eq!(samples.series(sandbox, None, Duration::from_secs(1)), []);
    }
}
