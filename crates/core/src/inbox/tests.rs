use super::*;
use MessageState as M;
use proptest::prelude::*;
use std::time::Duration;

const NOW: Timestamp = Timestamp::from_micros(1_000_000);

fn lease(n: u128, until: Timestamp) -> Lease {
    Lease { id: LeaseId::from_uuid(Uuid::from_u128(n)), stream: Uuid::from_u128(n % 3), expires_at: until }
}

fn leased() -> (DeliveryState, Lease) {
    let lease = lease(1, NOW + Duration::from_secs(30));
    (apply_delivery_input(DeliveryState::QUEUED, DeliveryInput::Lease(lease), NOW).unwrap(), lease)
}

#[test]
fn a_leased_message_is_not_leased_again() {
    let (standing, _) = leased();
    assert_eq!(apply_delivery_input(standing, DeliveryInput::Lease(lease(2, NOW)), NOW), Err(DeliveryError::Leased));
}

#[test]
fn an_ack_is_idempotent_and_accepted_after_expiry() {
    let (standing, current) = leased();
    let ack = DeliveryInput::Ack { lease: current.id, delivery_method: DeliveryMethod::Injected, turn: Some(3) };
    let late = NOW + Duration::from_secs(300);
    let done = apply_delivery_input(standing, ack, late).unwrap();
    assert_eq!(
        (done.state, done.delivery_method, done.turn),
        (M::Acknowledged, Some(DeliveryMethod::Injected), Some(3))
    );
    assert_eq!(apply_delivery_input(done, ack, late), Ok(done));
}

#[test]
fn rejects_an_ack_after_another_worker_leased_the_message() {
    let (standing, current) = leased();
    let late = NOW + Duration::from_secs(300);
    let other =
        apply_delivery_input(standing, DeliveryInput::Lease(lease(2, late + Duration::from_secs(30))), late).unwrap();
    let ack = DeliveryInput::Ack { lease: current.id, delivery_method: DeliveryMethod::Injected, turn: None };
    assert_eq!(apply_delivery_input(other, ack, late), Err(DeliveryError::NotYourLease));
}

#[test]
fn a_nack_reports_the_delivery_state() {
    let (standing, current) = leased();
    let nack = |handed, retry| {
        apply_delivery_input(
            standing,
            DeliveryInput::Nack { lease: current.id, was_handed_over: handed, may_retry: retry },
            NOW,
        )
        .unwrap()
        .state
    };
    assert_eq!(nack(false, true), M::Queued);
    assert_eq!(nack(true, true), M::DeliveredUnconfirmed);
    assert_eq!(nack(true, false), M::DeliveredUnconfirmed);
    assert_eq!(nack(false, false), M::Undeliverable);
}

#[test]
fn the_last_holder_can_acknowledge_until_an_edit() {
    let (standing, current) = leased();
    let freed = apply_delivery_input(standing, DeliveryInput::StreamReplaced { stream: current.stream }, NOW).unwrap();
    let ack = DeliveryInput::Ack { lease: current.id, delivery_method: DeliveryMethod::NewTurn, turn: None };
    assert_eq!(freed.state, M::Queued);
    assert_eq!(apply_delivery_input(freed, ack, NOW).unwrap().state, M::Acknowledged);
    let edited = apply_delivery_input(freed, DeliveryInput::Edit, NOW).unwrap();
    assert_eq!(apply_delivery_input(edited, ack, NOW), Err(DeliveryError::NotYourLease));
}

#[test]
fn only_a_queued_message_can_be_changed() {
    let (standing, _) = leased();
    assert_eq!(apply_delivery_input(standing, DeliveryInput::Edit, NOW), Err(DeliveryError::NotQueued(M::Leased)));
    assert_eq!(apply_delivery_input(standing, DeliveryInput::Cancel, NOW), Err(DeliveryError::NotQueued(M::Leased)));
}

fn any_step() -> impl Strategy<Value = DeliveryInput> {
    let id = (0u128..4).prop_map(|n| LeaseId::from_uuid(Uuid::from_u128(n)));
    prop_oneof![
        (0u128..4, 0i64..100).prop_map(|(n, until)| DeliveryInput::Lease(lease(n, Timestamp::from_micros(until)))),
        (id.clone(), 0i64..100)
            .prop_map(|(lease, until)| DeliveryInput::Renew { lease, until: Timestamp::from_micros(until) }),
        id.clone().prop_map(|lease| DeliveryInput::Ack {
            lease,
            delivery_method: DeliveryMethod::Injected,
            turn: None
        }),
        (id, any::<bool>(), any::<bool>()).prop_map(|(lease, was_handed_over, may_retry)| DeliveryInput::Nack {
            lease,
            was_handed_over,
            may_retry
        }),
        Just(DeliveryInput::Edit),
        Just(DeliveryInput::Cancel),
        (0u128..3).prop_map(|stream| DeliveryInput::StreamReplaced { stream: Uuid::from_u128(stream) }),
        Just(DeliveryInput::SessionClosed),
    ]
}

proptest! {
    /// For any order of steps: a final state is final, a leased message has a holder, only its holder can
    /// acknowledge it, and a rejected step changes nothing.
    #[test]
    fn any_interleaving_keeps_the_invariants(steps in proptest::collection::vec((any_step(), 0i64..100), 0..60)) {
        let mut standing = DeliveryState::QUEUED;
        let mut ends = 0;
        for (input, at) in steps {
            let Ok(after) = apply_delivery_input(standing, input, Timestamp::from_micros(at)) else { continue };
            prop_assert_eq!(after.delivery_method.is_some(), after.state == M::Acknowledged);
            if after.state == M::Leased {
                prop_assert!(after.lease.is_some());
            }
            if standing.state.is_final() {
                prop_assert_eq!(after, standing, "an end is an end");
            } else if after.state.is_final() {
                ends += 1;
            }
            if let (DeliveryInput::Ack { lease, .. }, false) = (input, standing.state.is_final()) {
                prop_assert_eq!(standing.lease.map(|current| current.id), Some(lease));
            }
            standing = after;
        }
        prop_assert!(ends <= 1);
    }
}
