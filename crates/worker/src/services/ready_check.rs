//! Waits until a service is ready.

use super::ServiceTools;
use super::service_process::ServiceProcess;
use crate::spawner::ExitStatus;
use atoll_core::service::{ReadyCheck, Service};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Without a check, a service is ready if it still runs after this time.
const SETTLE_TIME: Duration = Duration::from_millis(300);
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Some programs listen on one of the two only.
pub const LOOPBACKS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Returns when the service passes its check. The caller bounds the time.
pub(super) async fn wait_until_ready(service: &Service, tools: &ServiceTools) {
    let Some(check) = &service.ready else { return sleep(SETTLE_TIME).await };
    let mut interval = FIRST_INTERVAL;
    while !is_ready(service, check, tools).await {
        sleep(interval).await;
        interval = (interval * 2).min(MAX_INTERVAL);
    }
}

async fn is_ready(service: &Service, check: &ReadyCheck, tools: &ServiceTools) -> bool {
    match check {
        ReadyCheck::Port(port) => {
            for address in LOOPBACKS {
                if matches!(timeout(CONNECT_TIMEOUT, TcpStream::connect((address, *port))).await, Ok(Ok(_))) {
                    return true;
                }
            }
            false
        }
        ReadyCheck::Command(command) => match ServiceProcess::start(tools, tools.program(service, command)).await {
            Ok(mut process) => process.wait_for_exit().await == ExitStatus::Exited(0),
            Err(_) => false,
        },
    }
}
