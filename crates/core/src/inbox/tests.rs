use super::*;
use MessageState as M;
use proptest::prelude::*;
use std::time::Duration;

const NOW: Timestamp = Timestamp::from_micros(1_000_000);

fn lease(n: u128, until: Timestamp) -> Lease {
    Lease { id: LeaseId::from_uuid(Uuid::from_u128(n)), stream: Uuid::from_u128(n % 3), until }
}

fn leased() -> (Standing, Lease) {
    let lease = lease(1, NOW + Duration::from_secs(30));
    (step(Standing::QUEUED, Step::Lease(lease), NOW).unwrap(), lease)
}

#[test]
fn a_held_message_is_not_handed_out_again() {
    let (standing, _) = leased();
    assert_eq!(step(standing, Step::Lease(lease(2, NOW)), NOW), Err(Refused::Held));
}

#[test]
fn an_ack_is_idempotent_and_taken_after_expiry() {
    let (standing, held) = leased();
    let ack = Step::Ack { lease: held.id, how: How::Injected, turn: Some(3) };
    let late = NOW + Duration::from_secs(300);
    let done = step(standing, ack, late).unwrap();
    assert_eq!((done.state, done.how, done.turn), (M::Acknowledged, Some(How::Injected), Some(3)));
    assert_eq!(step(done, ack, late), Ok(done));
}

#[test]
fn an_ack_is_refused_once_somebody_else_holds_it() {
    let (standing, held) = leased();
    let late = NOW + Duration::from_secs(300);
    let other = step(standing, Step::Lease(lease(2, late + Duration::from_secs(30))), late).unwrap();
    let ack = Step::Ack { lease: held.id, how: How::Injected, turn: None };
    assert_eq!(step(other, ack, late), Err(Refused::NotYourLease));
}

#[test]
fn a_nack_says_what_is_known() {
    let (standing, held) = leased();
    let nack = |handed, retry| step(standing, Step::Nack { lease: held.id, handed, retry }, NOW).unwrap().state;
    assert_eq!(nack(false, true), M::Queued);
    assert_eq!(nack(true, true), M::DeliveredUnconfirmed);
    assert_eq!(nack(true, false), M::DeliveredUnconfirmed);
    assert_eq!(nack(false, false), M::Undeliverable);
}

#[test]
fn a_freed_message_can_be_confirmed_by_its_last_holder_until_it_is_edited() {
    let (standing, held) = leased();
    let freed = step(standing, Step::StreamReplaced { stream: held.stream }, NOW).unwrap();
    let ack = Step::Ack { lease: held.id, how: How::NewTurn, turn: None };
    assert_eq!(freed.state, M::Queued);
    assert_eq!(step(freed, ack, NOW).unwrap().state, M::Acknowledged);
    let edited = step(freed, Step::Edit, NOW).unwrap();
    assert_eq!(step(edited, ack, NOW), Err(Refused::NotYourLease));
}

#[test]
fn only_a_queued_message_can_be_changed() {
    let (standing, _) = leased();
    assert_eq!(step(standing, Step::Edit, NOW), Err(Refused::NotQueued(M::Leased)));
    assert_eq!(step(standing, Step::Cancel, NOW), Err(Refused::NotQueued(M::Leased)));
}

fn any_step() -> impl Strategy<Value = Step> {
    let id = (0u128..4).prop_map(|n| LeaseId::from_uuid(Uuid::from_u128(n)));
    prop_oneof![
        (0u128..4, 0i64..100).prop_map(|(n, until)| Step::Lease(lease(n, Timestamp::from_micros(until)))),
        (id.clone(), 0i64..100).prop_map(|(lease, until)| Step::Renew { lease, until: Timestamp::from_micros(until) }),
        id.clone().prop_map(|lease| Step::Ack { lease, how: How::Injected, turn: None }),
        (id, any::<bool>(), any::<bool>()).prop_map(|(lease, handed, retry)| Step::Nack { lease, handed, retry }),
        Just(Step::Edit),
        Just(Step::Cancel),
        (0u128..3).prop_map(|stream| Step::StreamReplaced { stream: Uuid::from_u128(stream) }),
        Just(Step::SessionClosed),
    ]
}

proptest! {
    /// In any order of steps: an end is an end, a held message has a holder, only its holder says
    /// that it was delivered, and a refusal changes nothing.
    #[test]
    fn any_interleaving_keeps_the_promises(steps in proptest::collection::vec((any_step(), 0i64..100), 0..60)) {
        let mut standing = Standing::QUEUED;
        let mut ends = 0;
        for (taken, at) in steps {
            let Ok(after) = step(standing, taken, Timestamp::from_micros(at)) else { continue };
            prop_assert_eq!(after.how.is_some(), after.state == M::Acknowledged);
            if after.state == M::Leased {
                prop_assert!(after.lease.is_some());
            }
            if standing.state.is_final() {
                prop_assert_eq!(after, standing, "an end is an end");
            } else if after.state.is_final() {
                ends += 1;
            }
            if let (Step::Ack { lease, .. }, false) = (taken, standing.state.is_final()) {
                prop_assert_eq!(standing.lease.map(|held| held.id), Some(lease));
            }
            standing = after;
        }
        prop_assert!(ends <= 1);
    }
}
