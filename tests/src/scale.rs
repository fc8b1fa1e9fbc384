//! How large the large counts are, and from which seed they go.

/// A tenth by default; `ATOLL_TEST_SCALE=1` (`make soak`) is the whole.
pub fn scaled(whole: usize) -> usize {
    let scale = std::env::var("ATOLL_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(0.1);
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small counts"
    )]
    let count = (whole as f64 * scale).ceil() as usize;
    count.max(1)
}

/// A fresh seed, printed, unless `ATOLL_TEST_SEED` names one.
pub fn seed(what: &str) -> u64 {
    let seed = std::env::var("ATOLL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    let mut out = std::io::stderr().lock();
    drop(std::io::Write::write_all(&mut out, format!("{what}: ATOLL_TEST_SEED={seed}\n").as_bytes()));
    seed
}
