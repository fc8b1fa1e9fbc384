//! Reads rate limits from a response's headers.

use std::time::Duration;

/// Wait without a header that says more. GitHub asks for at least a minute.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// Bounds what a wrong header can cause.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// The headers of a response that concern rate limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitHeaders {
    /// `retry-after`, in seconds.
    pub retry_after: Option<u64>,
    /// `x-ratelimit-remaining`.
    pub remaining: Option<u64>,
    /// `x-ratelimit-reset`, in seconds since 1970.
    pub reset: Option<u64>,
}

/// Returns the wait if the response is a rate limit. A plain 403 without these headers is a missing permission, unless its
/// text names a rate limit.
pub fn rate_limit_wait(status: u16, headers: &LimitHeaders, message: &str, now: u64) -> Option<Duration> {
    if !matches!(status, 403 | 429) {
        return None;
    }
    let wait = match (headers.retry_after, headers.remaining, headers.reset) {
        (Some(seconds), _, _) => Duration::from_secs(seconds),
        (None, Some(0), Some(reset)) => Duration::from_secs(reset.saturating_sub(now)),
        (None, Some(0), None) => DEFAULT_WAIT,
        (None, _, _) if status == 429 || message.to_ascii_lowercase().contains("rate limit") => DEFAULT_WAIT,
        (None, _, _) => return None,
    };
    Some(wait.clamp(Duration::from_secs(1), MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_decide_the_wait() {
        let seconds = |status, retry_after, remaining, reset, message| {
            let headers = LimitHeaders { retry_after, remaining, reset };
            rate_limit_wait(status, &headers, message, 1000).map(|wait| wait.as_secs())
        };
        assert_eq!(seconds(403, Some(7), None, None, ""), Some(7));
        assert_eq!(seconds(429, Some(0), None, None, ""), Some(1));
        assert_eq!(seconds(403, None, Some(0), Some(1030), ""), Some(30));
        assert_eq!(seconds(403, None, Some(0), Some(900), ""), Some(1));
        assert_eq!(seconds(403, None, Some(0), Some(u64::MAX), ""), Some(3600));
        assert_eq!(seconds(429, None, Some(5), None, ""), Some(60));
        assert_eq!(seconds(403, None, None, None, "You have exceeded a secondary rate limit"), Some(60));
        assert_eq!(seconds(403, None, Some(5), Some(1030), "Resource not accessible by integration"), None);
        assert_eq!(seconds(404, Some(7), Some(0), None, ""), None);
    }
}
