//! Resource usage of sandboxes, measured by the provider: the last hour in memory, one sample per minute in the store, so
//! that the series outlasts a restart.

use crate::problem::Result;
use crate::state::App;
use atoll_api::ResourceSample;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Provider, ProviderId, ResourceUsage};
use atoll_core::sandbox::SandboxState;
use atoll_core::time::Timestamp;
use atoll_store::sandboxes::{self, SandboxFilter};
use atoll_store::usage_samples::{self, UsageSample};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval between samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Samples per sandbox: one hour.
const MAX_SAMPLES: usize = 360;
/// Rounds of samples between two that are stored: one minute.
const ROUNDS_PER_STORED: u32 = 6;
/// Stored samples that are older become one per ten minutes.
pub const FINE_SAMPLES_TIME: Duration = Duration::from_secs(3600);
const PAGE_SIZE: i64 = 100;

#[derive(Debug, Clone, Copy)]
struct RawSample {
    point: ResourceSample,
    cpu_seconds: f64,
}

#[derive(Debug, Default)]
pub struct Samples {
    series: Mutex<HashMap<SandboxId, VecDeque<RawSample>>>,
}

impl Samples {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, VecDeque<RawSample>>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, sandbox: SandboxId, at: Timestamp, usage: ResourceUsage) -> ResourceSample {
        let mut all = self.lock();
        let series = all.entry(sandbox).or_default();
        let cpu = series.back().and_then(|last| {
            let passed = at.elapsed_since(last.point.at).as_secs_f64();
            (passed > 0.0).then(|| ((usage.cpu_seconds - last.cpu_seconds) / passed).max(0.0))
        });
        let ResourceUsage { cpu_seconds, memory_bytes, disk_bytes, pids, network_bytes } = usage;
        let point = ResourceSample { at, cpu, memory_bytes, disk_bytes, pids, network_bytes };
        series.push_back(RawSample { point, cpu_seconds });
        while series.len() > MAX_SAMPLES {
            series.pop_front();
        }
        point
    }

    /// The points of a sandbox in memory.
    fn points(&self, sandbox: SandboxId) -> Vec<ResourceSample> {
        self.lock().get(&sandbox).into_iter().flatten().map(|sample| sample.point).collect()
    }

    /// The newest point of each sandbox.
    pub fn newest_points(&self) -> Vec<(SandboxId, ResourceSample)> {
        self.lock().iter().filter_map(|(sandbox, series)| Some((*sandbox, series.back()?.point))).collect()
    }

    /// Drops the series of other sandboxes.
    fn retain_only(&self, living: &HashSet<SandboxId>) {
        self.lock().retain(|sandbox, _| living.contains(sandbox));
    }
}

/// The points after `since`, each the mean over `step`: stored ones, then those in memory.
pub async fn read_series(
    app: &App,
    sandbox: SandboxId,
    since: Option<Timestamp>,
    step: Duration,
) -> Result<Vec<ResourceSample>> {
    let recent = app.samples.points(sandbox);
    let since = since.unwrap_or_else(|| app.clock.now() - FINE_SAMPLES_TIME);
    let until = recent.first().map_or(Timestamp::from_micros(i64::MAX), |point| point.at);
    let stored = app.read(async move |tx| Ok(usage_samples::list_samples(tx, sandbox, since, until).await?)).await?;
    let recent = recent.into_iter().filter(|point| point.at >= since);
    Ok(downsample(stored.into_iter().map(from_stored).chain(recent), step))
}

fn from_stored(sample: UsageSample) -> ResourceSample {
    let whole = |figure: Option<i64>| figure.and_then(|figure| u64::try_from(figure).ok());
    #[allow(clippy::cast_precision_loss, reason = "thousandths of processors are far from the limit of f64")]
    let cpu = sample.cpu_milli.map(|milli| milli as f64 / 1000.0);
    ResourceSample {
        at: sample.at,
        cpu,
        memory_bytes: whole(sample.memory_bytes).unwrap_or(0),
        disk_bytes: whole(sample.disk_bytes),
        pids: whole(sample.pids).unwrap_or(0),
        network_bytes: whole(sample.network_bytes).unwrap_or(0),
    }
}

fn to_stored(point: &ResourceSample) -> UsageSample {
    let whole = |figure: u64| Some(i64::try_from(figure).unwrap_or(i64::MAX));
    UsageSample {
        at: point.at,
        // Out-of-range values saturate.
        cpu_milli: point.cpu.map(|cpu| (cpu * 1000.0) as i64),
        memory_bytes: whole(point.memory_bytes),
        disk_bytes: point.disk_bytes.and_then(whole),
        pids: whole(point.pids),
        network_bytes: whole(point.network_bytes),
    }
}

/// Stores the newest point of each sandbox.
async fn store_points(app: &App) -> Result<()> {
    let points = app.samples.newest_points();
    if points.is_empty() {
        return Ok(());
    }
    app.write(async move |work| {
        for (sandbox, point) in points {
            // A sandbox can be removed meanwhile.
            if sandboxes::find_owner_ids(work.tx, sandbox).await?.is_some() {
                usage_samples::add_sample(work.tx, sandbox, &to_stored(&point)).await?;
                usage_samples::thin_samples(work.tx, sandbox, work.now - FINE_SAMPLES_TIME).await?;
            }
        }
        Ok(())
    })
    .await
}

/// Averages points into one per `step`.
fn downsample(points: impl Iterator<Item = ResourceSample>, step: Duration) -> Vec<ResourceSample> {
    let length = i64::try_from(step.as_micros()).unwrap_or(i64::MAX).max(1);
    let mut groups: Vec<(i64, Vec<ResourceSample>)> = Vec::new();
    for point in points {
        let group = point.at.as_micros() / length;
        match groups.last_mut() {
            Some((last, points)) if *last == group => points.push(point),
            _ => groups.push((group, vec![point])),
        }
    }
    groups.into_iter().filter_map(|(_, points)| mean_point(&points)).collect()
}

fn mean_point(points: &[ResourceSample]) -> Option<ResourceSample> {
    let last = *points.last()?;
    let count = u64::try_from(points.len()).unwrap_or(1).max(1);
    let whole = |figure: fn(&ResourceSample) -> u64| points.iter().map(figure).sum::<u64>() / count;
    let disk: Vec<u64> = points.iter().filter_map(|point| point.disk_bytes).collect();
    let cpu: Vec<f64> = points.iter().filter_map(|point| point.cpu).collect();
    // Few points, so the conversion is exact.
    let parts = f64::from(u32::try_from(cpu.len()).unwrap_or(u32::MAX));
    Some(ResourceSample {
        cpu: (!cpu.is_empty()).then(|| cpu.iter().sum::<f64>() / parts),
        memory_bytes: whole(|point| point.memory_bytes),
        disk_bytes: disk.iter().sum::<u64>().checked_div(disk.len() as u64),
        pids: whole(|point| point.pids),
        ..last
    })
}

/// Measures a sandbox now and adds the point to its series.
pub async fn sample_now(
    app: &App,
    provider: &dyn Provider,
    sandbox: SandboxId,
    place: &ProviderId,
) -> Result<ResourceSample> {
    let mut usage = provider.resources(place).await?;
    usage.network_bytes = usage.network_bytes.max(app.egress.total_bytes(sandbox));
    Ok(app.samples.add(sandbox, app.clock.now(), usage))
}

/// Samples every running sandbox until the server stops.
pub async fn run_sampler(app: Arc<App>) {
    let mut stopping = app.stopping.clone();
    let mut clock = tokio::time::interval(SAMPLE_INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for round in 1_u32.. {
        tokio::select! {
            _ = clock.tick() => {}
            _ = stopping.wait_for(|stop| *stop) => break,
        }
        let mut sampled = sample_all(&app).await;
        if round.is_multiple_of(ROUNDS_PER_STORED) {
            sampled = sampled.and(store_points(&app).await);
        }
        if let Err(problem) = sampled {
            tracing::debug!(detail = %problem.detail, "failed to sample resource usage");
        }
    }
    if let Err(problem) = store_points(&app).await {
        tracing::debug!(detail = %problem.detail, "failed to store the last samples");
    }
}

async fn sample_all(app: &App) -> Result<()> {
    let providers = app.providers()?;
    let mut living = HashSet::new();
    let mut before: Option<String> = None;
    loop {
        let filter = SandboxFilter { state: Some(SandboxState::Running), ..SandboxFilter::default() };
        let place = before.clone();
        let found = app
            .read(async move |tx| Ok(sandboxes::list_sandboxes(tx, &filter, place.as_deref(), PAGE_SIZE).await?))
            .await?;
        let Some(last) = found.last() else { break };
        before = Some(last.id.to_string());
        for row in found {
            let Some(name) = row.provider_id.filter(|_| row.server_id.as_deref() == Some(app.server_id.as_str()))
            else {
                continue;
            };
            living.insert(row.id);
            // A failed measurement leaves a gap.
            drop(sample_now(app, &*providers.get(row.provider), row.id, &ProviderId(name)).await);
        }
    }
    app.samples.retain_only(&living);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cpu_seconds: f64, memory_bytes: u64) -> ResourceUsage {
        ResourceUsage { cpu_seconds, memory_bytes, ..ResourceUsage::default() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn cpu_is_the_difference_between_two_points() {
        let (samples, sandbox) = (Samples::default(), SandboxId::new());
        assert_eq!(samples.add(sandbox, at(0), usage(5.0, 1)).cpu, None);
        assert_eq!(samples.add(sandbox, at(10), usage(20.0, 1)).cpu, Some(1.5));
        assert_eq!(samples.add(sandbox, at(20), usage(1.0, 1)).cpu, Some(0.0), "a reset counter");
    }

    #[test]
    fn downsamples_and_keeps_one_hour() {
        let (samples, sandbox) = (Samples::default(), SandboxId::new());
        for second in 0..4_000 {
            samples.add(sandbox, at(second), usage(0.0, u64::try_from(second).unwrap()));
        }
        let all = samples.points(sandbox);
        assert_eq!((all.len(), all[0].at), (MAX_SAMPLES, at(3640)));
        let means = downsample(all.into_iter().filter(|point| point.at >= at(3980)), Duration::from_secs(10));
        assert_eq!(means.iter().map(|point| point.memory_bytes).collect::<Vec<_>>(), [3984, 3994]);
        samples.retain_only(&HashSet::new());
        assert_eq!(samples.points(sandbox), []);
    }

    #[test]
    fn a_stored_point_is_the_same_point() {
        let (samples, sandbox) = (Samples::default(), SandboxId::new());
        samples.add(sandbox, at(0), usage(0.0, 1));
        let point =
            samples.add(sandbox, at(10), ResourceUsage { pids: 3, disk_bytes: Some(7), ..usage(15.0, 1 << 40) });
        assert_eq!(from_stored(to_stored(&point)), point);
        assert_eq!(samples.newest_points(), [(sandbox, point)]);
    }
}
