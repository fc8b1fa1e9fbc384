//! The scale and the seed of randomised tests.

/// The share of the full counts that a run covers: a tenth by default, all with `ATOLL_TEST_SCALE=1` (`make soak`).
fn test_scale() -> f64 {
    std::env::var("ATOLL_TEST_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(0.1)
}

/// Scales a count down.
pub fn scale_count(whole: usize) -> usize {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small counts"
    )]
    let count = (whole as f64 * test_scale()).ceil() as usize;
    count.max(1)
}

/// Returns and prints the seed: `ATOLL_TEST_SEED`, or a random one.
pub fn choose_seed(what: &str) -> u64 {
    let seed = std::env::var("ATOLL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    let mut out = std::io::stderr().lock();
    drop(std::io::Write::write_all(&mut out, format!("{what}: ATOLL_TEST_SEED={seed}\n").as_bytes()));
    seed
}
