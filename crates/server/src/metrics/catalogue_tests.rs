use super::*;
use std::collections::BTreeSet;
use std::fmt::Write;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
const DASHBOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana/atoll.json");

fn describe_values(values: &LabelValues) -> String {
    match values {
        LabelValues::Fixed(values) => values().iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", "),
        LabelValues::Bounded(text) => (*text).to_owned(),
    }
}

#[test]
fn metrics_are_a_contract() {
    let described: Vec<_> = METRICS
        .iter()
        .map(|metric| {
            let labels: Vec<_> =
                metric.labels.iter().map(|(name, values)| format!("{name}: {}", describe_values(values))).collect();
            serde_json::json!({ "name": metric.name, "type": metric.kind.as_str(), "labels": labels, "help": metric.help })
        })
        .collect();
    insta::assert_json_snapshot!(described);
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), METRICS.len(), "a name occurs twice");
    for metric in METRICS {
        assert!(metric.name.starts_with("atoll_"), "{}", metric.name);
        assert_eq!(metric.kind == MetricKind::Counter, metric.name.ends_with("_total"), "{}", metric.name);
        assert_eq!(metric.kind == MetricKind::Seconds, metric.name.ends_with("_seconds"), "{}", metric.name);
    }
}

#[test]
fn the_page_lists_every_metric() {
    let mut page = String::from(
        "# Metrics\n\n`GET /metrics` has these metrics in the text format of Prometheus. It needs a token unless `metrics.public` is set.\n\n\
         Every label is bounded: no agent and no user can add series. A counter of the server starts at 0 when the server starts;\n\
         gauges of sandboxes, jobs and messages are read from the database at each scrape. [Monitoring](monitoring.md) shows how to use\n\
         them, and `packaging/grafana/atoll.json` is a dashboard.\n\n\
         This page is generated. To update it, run `ATOLL_TEST_WRITE=1 cargo test -p atoll-server --lib metrics`.\n\n\
         | metric | type | labels | |\n|---|---|---|---|\n",
    );
    for metric in METRICS {
        let labels: Vec<_> =
            metric.labels.iter().map(|(name, values)| format!("`{name}`: {}", describe_values(values))).collect();
        let (name, kind, labels, help) = (metric.name, metric.kind.as_str(), labels.join("; "), metric.help);
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    if std::env::var_os("ATOLL_TEST_WRITE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    assert_eq!(std::fs::read_to_string(PAGE).unwrap(), page, "regenerate it with ATOLL_TEST_WRITE=1");
}

/// Every name that begins with `atoll_` in an expression, without a histogram's suffix.
fn names_in(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let plain = |word: &'static str| move |name: &str| name.strip_suffix(word).map(str::len);
    words
        .filter(|word| word.starts_with("atoll_"))
        .map(|word| {
            let end = ["_bucket", "_sum", "_count"].into_iter().find_map(|suffix| plain(suffix)(word));
            &word[..end.unwrap_or(word.len())]
        })
        .collect()
}

#[test]
fn the_dashboard_uses_only_metrics_and_labels_that_exist() {
    let text = std::fs::read_to_string(DASHBOARD).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut used = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "a panel's id occurs twice");
        for field in ["x", "y", "w", "h"] {
            assert!(panel["gridPos"][field].is_u64(), "{panel}");
        }
        if panel["type"] == "row" {
            continue;
        }
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let names = names_in(expression);
            assert!(!names.is_empty(), "{expression}");
            for name in names {
                let metric = METRICS.iter().find(|metric| metric.name == name);
                let metric = metric.unwrap_or_else(|| panic!("{name} does not exist: {expression}"));
                let grouped = expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
                for label in grouped.flat_map(|list| list.split(',')).map(str::trim).filter(|label| *label != "le") {
                    assert!(metric.labels.iter().any(|(known, _)| *known == label), "{label}: {expression}");
                }
                used.insert(metric.name);
            }
        }
    }
    assert!(used.len() * 2 > METRICS.len(), "the dashboard shows only {} of {} metrics", used.len(), METRICS.len());
}

#[test]
fn names_of_the_store_are_listed() {
    for name in [atoll_store::COMMIT_SECONDS, atoll_store::COMMIT_UNITS] {
        assert!(METRICS.iter().any(|metric| metric.name == name), "{name}");
    }
}

#[test]
fn codes_of_provider_failures_are_listed_once() {
    let LabelValues::Fixed(codes) = FAILURE_CODES else { panic!() };
    assert_eq!(codes().iter().collect::<BTreeSet<_>>().len(), ERROR_CODES.len() + 1);
}
