//! Timestamps, and the wall and steady clocks.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch; formatted as RFC 3339 in UTC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a time: use the form 2026-01-31T12:00:00Z")]
pub struct InvalidTimestamp;

impl Timestamp {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    pub fn elapsed_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time:.6}"),
            Err(_) => f.write_str("9999-12-30T22:00:00.000000Z"),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Timestamp {
    type Err = InvalidTimestamp;

    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        let time: jiff::Timestamp = text.parse().map_err(|_| InvalidTimestamp)?;
        Ok(Self(time.as_microsecond()))
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Timestamp {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .format(Some(utoipa::openapi::SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::DateTime)))
            .build()
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Timestamp {}

/// `now` is the wall-clock time, for users and the log. `steady` is monotonic while the process lives, for deadlines
/// and leases: it starts at the wall-clock time and counts from there.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
    fn steady_now(&self) -> Timestamp;
}

#[derive(Debug)]
pub struct SystemClock {
    started_at: Timestamp,
    started: Instant,
}

impl SystemClock {
    pub fn start() -> Self {
        Self { started_at: wall_time(), started: Instant::now() }
    }
}

fn wall_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        wall_time()
    }

    fn steady_now(&self) -> Timestamp {
        self.started_at + self.started.elapsed()
    }
}

/// A clock that advances only when told to: for tests and simulations.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub fn starting_at(time: Timestamp) -> Self {
        Self(AtomicI64::new(time.0))
    }

    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(i64::try_from(span.as_micros()).unwrap_or(0), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    fn steady_now(&self) -> Timestamp {
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_round_trips() {
        let time = Timestamp::from_micros(1_763_200_000_123_456);
        assert_eq!(time.to_string(), "2025-11-15T09:46:40.123456Z");
        assert_eq!(time.to_string().parse(), Ok(time));
    }

    #[test]
    fn accepts_an_offset_and_rejects_a_missing_one() {
        assert_eq!("2026-01-01T01:00:00+01:00".parse::<Timestamp>(), "2026-01-01T00:00:00Z".parse());
        assert_eq!("2026-01-01T01:00:00".parse::<Timestamp>(), Err(InvalidTimestamp));
    }
}
