//! The section `telemetry`.

use crate::format::{BASE_URL, SecretText};
use crate::key::section;
use crate::sections::Config;
use secrecy::SecretString;

section! {
    /// What the server reports about itself to other programs.
    Telemetry at [telemetry] {
        section otlp: Otlp;
    }
}

section! {
    /// Traces over OpenTelemetry's protocol.
    Otlp at [telemetry.otlp] {
        /// Base URL of a receiver of traces over OTLP/HTTP; if unset, nothing is sent
        endpoint: Option<String> = None => BASE_URL,
            env(&["OTEL_EXPORTER_OTLP_ENDPOINT"]), sample("http://127.0.0.1:4318");
        /// Headers of the requests to the receiver, such as a key: `name=value,name=value`
        headers: Option<SecretString> = None => SecretText,
            env(&["OTEL_EXPORTER_OTLP_HEADERS"]), sample("authorization=Basic example");
    }
}
