use super::*;
use atoll_core::event::kind;
use proptest::prelude::*;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn item(text: &str) -> Item {
    parse_line(&Line::Whole(text.as_bytes()), NOW).expect("not blank")
}

fn event(text: &str) -> Event {
    match item(text) {
        Item::Event(event) => event,
        other => panic!("not an event: {other:?}"),
    }
}

fn reason(text: &str) -> String {
    let event = event(text);
    assert_eq!(event.event_type.as_str(), kind::AGENT_UNPARSED);
    let data: serde_json::Value = serde_json::from_str(event.data.get()).unwrap();
    assert!(text.starts_with(data["excerpt"].as_str().unwrap()));
    assert_eq!(data["bytes"], text.len());
    data["reason"].as_str().unwrap().to_owned()
}

#[test]
fn an_event_has_defaults() {
    let event = event(r#"{"type":"agent.message","data":{"text":"hi"}}"#);
    assert_eq!((event.event_type.as_str(), event.source, event.at), ("agent.message", EventSource::Agent, NOW));
    assert_eq!((event.turn, event.data.get()), (None, r#"{"text":"hi"}"#));
}

#[test]
fn an_event_says_more_of_itself() {
    let event = event(r#"{"type":"x","source":"worker","at":"2026-01-01T00:00:00Z","turn":3}"#);
    assert_eq!((event.source, event.turn, event.data.get()), (EventSource::Worker, Some(3), "{}"));
    assert_eq!(event.at, "2026-01-01T00:00:00Z".parse().unwrap());
}

#[test]
fn lines_without_an_event_become_unparsed() {
    assert!(reason("hello").contains("expected value"));
    assert!(reason("[1]").contains("invalid type"));
    assert!(reason(r#"{"kind":"x"}"#).contains("neither an event"));
    assert!(reason(r#"{"type":"Agent Message"}"#).contains("an event type has"));
    assert!(reason(r#"{"type":"x","source":"guardian"}"#).contains("source"));
    assert!(reason(r#"{"type":"x","data":[1]}"#).contains("must be an object"));
    assert!(reason(r#"{"type":"x","at":"yesterday"}"#).contains("not a time"));
    let deep = format!(r#"{{"type":"x","data":{}1{}}}"#, r#"{"a":"#.repeat(40), "}".repeat(40));
    assert!(reason(&deep).contains("32 levels"));
    let large = format!(r#"{{"type":"x","data":{{"a":"{}"}}}}"#, "b".repeat(bounds::MAX_EVENT_DATA_BYTES));
    assert!(reason(&large).contains("at most"));
}

#[test]
fn invalid_utf8_becomes_unparsed() {
    let Some(Item::Event(event)) = parse_line(&Line::Whole(b"{\"type\":\"\xff\xfe\"}"), NOW) else {
        panic!("no event")
    };
    let data: serde_json::Value = serde_json::from_str(event.data.get()).unwrap();
    assert!(data["reason"].as_str().unwrap().starts_with("not UTF-8"));
    assert_eq!(data["excerpt"], "{\"type\":\"\u{fffd}\u{fffd}\"}");
}

#[test]
fn distinguishes_control_lines() {
    let id = MessageId::new();
    let ack = item(&format!(r#"{{"ack":{{"id":"{id}","how":"new_turn","turn":2}}}}"#));
    assert!(matches!(ack, Item::Ack(Ack { id: it, how: DeliveryMethod::NewTurn, turn: Some(2) }) if it == id));
    let nack = item(&format!(r#"{{"nack":{{"id":"{id}","handed":true}}}}"#));
    assert!(matches!(nack, Item::Nack(Nack { handed: true, retry: false, .. })));
    assert!(matches!(item(r#"{"live":{"text":"a"}}"#), Item::Live(_)));
    assert!(matches!(item(r#"{"activity":"waiting_message"}"#), Item::Activity(Activity::WaitingMessage)));
    assert!(
        matches!(item(r#"{"ack":{"id":"msg_1","how":"injected"}}"#), Item::Invalid(why) if why.starts_with("ack: "))
    );
    assert!(matches!(item(r#"{"activity":"dancing"}"#), Item::Invalid(why) if why.starts_with("activity: ")));
}

#[test]
fn a_line_of_50_mb_is_bounded() {
    let mut lines = LineSplitter::default();
    let mut items = Vec::new();
    let chunk = vec![b'x'; 64 * 1024];
    for _ in 0..800 {
        lines.push(&chunk, |line| items.push(parse_line(&line, NOW)));
    }
    lines.push(b"\n{\"type\":\"x\"}\n", |line| items.push(parse_line(&line, NOW)));
    let [Some(Item::Event(long)), Some(Item::Event(after))] = &items[..] else { panic!("two events: {items:?}") };
    let data: serde_json::Value = serde_json::from_str(long.data.get()).unwrap();
    assert_eq!(data["bytes"], 800 * 64 * 1024);
    assert_eq!(data["excerpt"].as_str().unwrap().len(), MAX_EXCERPT_BYTES);
    assert_eq!(after.event_type.as_str(), "x");
}

#[test]
fn a_line_of_just_the_bound_is_whole() {
    let (mut lines, mut whole_lines) = (LineSplitter::default(), Vec::new());
    for extra in [0, 1] {
        let mut line = vec![b'x'; MAX_LINE_BYTES + extra];
        line.push(b'\n');
        lines.push(&line, |line| whole_lines.push(matches!(line, Line::Whole(_))));
    }
    assert_eq!(whole_lines, [true, false]);
}

fn any_line() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>().prop_filter("no line end", |b| *b != b'\n'), 0..80),
        "[ \t\r]{0,4}".prop_map(String::into_bytes),
        "\\{\"(type|ack|nack|live|activity|data)\":[\"{a-z0-9:.}]{0,20}\\}".prop_map(String::into_bytes),
        Just(br#"{"type":"agent.message","data":{}}"#.to_vec()),
    ]
}

proptest! {
    /// Any bytes, split anywhere, yield one item per non-blank line.
    #[test]
    fn every_line_is_one_item(lines in proptest::collection::vec(any_line(), 0..20), pieces in proptest::collection::vec(1usize..40, 1..20)) {
        let bytes = lines.join(&b'\n');
        let (mut splitter, mut items) = (LineSplitter::default(), 0);
        let mut rest = &bytes[..];
        for piece in pieces.iter().cycle() {
            let (now, later) = rest.split_at(rest.len().min(*piece));
            splitter.push(now, |line| items += usize::from(parse_line(&line, NOW).is_some()));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        splitter.finish(|line| items += usize::from(parse_line(&line, NOW).is_some()));
        prop_assert_eq!(items, lines.iter().filter(|line| !line.trim_ascii().is_empty()).count());
    }
}
