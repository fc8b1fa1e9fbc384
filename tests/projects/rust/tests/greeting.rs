#[test]
fn greets_a_number_of_guests() {
    assert_eq!(greeting::greet(3), "Hello, 3 guests!");
}
