//! One example per event type, for `docs/events.md` and the round-trip test.

/// Event type and data.
pub const EXAMPLES: &[(&str, &str)] = &[
    (
        "agent.started",
        r#"{"agent":"claude","version":"2.1.0","model":"claude-sonnet-4-5","cwd":"/workspace","native_id":"0d6f2c1e","tools":["Bash","Edit"],"permission_mode":"default"}"#,
    ),
    ("agent.completed", r#"{"stop_reason":"end_turn","steps":4,"duration_ms":18250}"#),
    (
        "agent.failed",
        r#"{"turn":2,"reason":"out_of_memory","error":"the agent was killed because the sandbox's memory ran out","stderr_tail":"Killed","exit":{"kind":"out_of_memory"},"memory_limit":2000000000,"memory_peak":1999998976}"#,
    ),
    ("agent.waiting", r"{}"),
    ("agent.shutdown", r#"{"reason":"sandbox_completing"}"#),
    ("agent.heartbeat", r"{}"),
    ("agent.message", r#"{"text":"I fixed the failing test."}"#),
    (
        "agent.assistant_message",
        r#"{"content":[{"type":"thinking","characters":312},{"type":"text","characters":25},{"type":"tool_use","tool_use_id":"toolu_01","tool":"Bash"}],"message_id":"msg_01","model":"claude-sonnet-4-5"}"#,
    ),
    ("agent.user_tool_result", r#"{"results":[{"tool_use_id":"toolu_01","is_error":false}]}"#),
    (
        "agent.message_injected",
        r#"{"message_id":"msg_01k9z6m3q8e5t7v2x4y6a8b0cd","text":"use the other branch","how":"injected"}"#,
    ),
    ("agent.interrupted", r#"{"turn":3,"message_id":"msg_01k9z6m3q8e5t7v2x4y6a8b0cd","text":"stop","forced":true}"#),
    ("agent.unparsed", r#"{"excerpt":"{\"type\":\"new","reason":"a line that is not JSON","bytes":5120}"#),
    ("agent.thinking", r#"{"text":"The test expects two lines.","parent_tool_use_id":"toolu_09"}"#),
    (
        "agent.system_message",
        r#"{"subtype":"resume_failed","native_id":"0d6f2c1e","error":"the transcript is gone","text":"The agent starts a new conversation."}"#,
    ),
    ("agent.stream_error", r#"{"attempt":1,"max_attempts":10,"retry_in_ms":1500.5,"status":529,"error":"overloaded"}"#),
    ("agent.rate_limited", r#"{"until":"2026-01-02T03:04:05.000000Z"}"#),
    ("agent.error", r#"{"error":"the model does not exist","status":404}"#),
    ("agent.plan", r#"{"items":[{"text":"write a test","state":"in_progress"}],"adds":true}"#),
    (
        "agent.subagent_invoked",
        r#"{"tool_use_id":"toolu_09","description":"find the callers","subagent":"general-purpose"}"#,
    ),
    ("agent.subagent_completed", r#"{"tool_use_id":"toolu_09","output":"There are three callers.","is_error":false}"#),
    ("agent.skill_invoked", r#"{"tool_use_id":"toolu_10","skill":"release-notes"}"#),
    ("agent.skill_completed", r#"{"tool_use_id":"toolu_10","output":"done","is_error":false}"#),
    (
        "agent.usage",
        r#"{"input_tokens":812,"output_tokens":240,"cache_read_tokens":10240,"cache_write_tokens":0,"cost_usd":0.0125,"cost_by":"price_table","model":"claude-sonnet-4-5"}"#,
    ),
    (
        "agent.transcript",
        r#"{"agent":"claude","native_id":"0d6f2c1e","blob":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08","bytes":48213}"#,
    ),
    ("agent.transcript_failed", r#"{"native_id":"0d6f2c1e","error":"the file is larger than 64 MiB"}"#),
    ("agent.tool_use", r#"{"tool":"Bash","tool_use_id":"toolu_01","input":{"command":"cargo test"}}"#),
    (
        "agent.tool_completed",
        r#"{"tool":"Bash","tool_use_id":"toolu_01","output":"test result: ok","is_error":false,"exit_code":0}"#,
    ),
    (
        "agent.file_edited",
        r#"{"file_path":"src/lib.rs","change_type":"modified","lines_added":1,"lines_removed":1,"diff_preview":"-a\n+b\n","full_diff":"-a\n+b\n","turn":1,"tool_use_id":"toolu_01"}"#,
    ),
    ("agent.settings_ignored", r#"{"settings":[{"setting":"denied_tools","reason":"the agent has no such setting"}]}"#),
    (
        "approval.requested",
        r#"{"approval_id":"apr_01","kind":"permission","tool":"Bash","tool_use_id":"toolu_01","input":{"command":"rm -r build"},"sha256":"2c26b46b","turn":1}"#,
    ),
    ("approval.answered", r#"{"approval_id":"apr_01","decision":"deny","reason":"keep it","answers":null}"#),
    (
        "approval.resolved",
        r#"{"approval_id":"apr_01","decision":"deny","reason":"keep it","tool":"Bash","tool_use_id":"toolu_01"}"#,
    ),
    (
        "continuous.started",
        r#"{"checks":["make test"],"require":["committed"],"iterations":10,"errors":3,"duration_s":3600,"cost_usd":null}"#,
    ),
    ("continuous.validating", r#"{"iteration":2,"iterations":10,"round":2}"#),
    (
        "continuous.check",
        r#"{"name":"make test","verdict":"failed","exit":{"kind":"exited","code":2},"detail":"exit code 2","output":"1 failed","duration_ms":5210,"round":2}"#,
    ),
    ("continuous.checked", r#"{"round":2,"verdict":"failed","passed":1,"failed":["make test"],"unknown":[]}"#),
    ("continuous.run_failed", r#"{"iteration":2,"errors":1,"errors_limit":3,"error":"the agent exited with code 1"}"#),
    ("continuous.passed", r#"{"iteration":3}"#),
    (
        "continuous.stopped",
        r#"{"reason":"iterations","detail":"10 runs did not pass the checks","iteration":10,"errors":0,"last_error":null}"#,
    ),
    (
        "worker.rejected",
        r#"{"stream":"0198f0a0-0000-7000-8000-000000000001","key":17,"code":"too_large","detail":"the data has more than 64 KB"}"#,
    ),
    ("log.truncated", r#"{"log_bytes":1999990000,"quota_bytes":2000000000}"#),
    (
        "worker.lost",
        r#"{"stream":"0198f0a0-0000-7000-8000-000000000001","last_key":41,"detail":"the worker did not send its last events"}"#,
    ),
    ("sandbox.pending", r#"{"state":"pending"}"#),
    ("sandbox.creating", r#"{"state":"creating","outcome":null,"reason":null}"#),
    ("sandbox.running", r#"{"state":"running","outcome":null,"reason":null}"#),
    ("sandbox.completing", r#"{"state":"completing","outcome":null,"reason":null}"#),
    ("sandbox.completed", r#"{"state":"completed","outcome":"succeeded","reason":null}"#),
    (
        "sandbox.failed",
        r#"{"state":"failed","outcome":"failed","reason":{"code":"worker_silent","detail":"no heartbeat for 60 s"}}"#,
    ),
    ("sandbox.paused", r#"{"activity":"paused"}"#),
    ("sandbox.resumed", r#"{"activity":"working"}"#),
    ("sandbox.snapshot", r#"{"name":"with-dependencies"}"#),
    ("sandbox.notice", r#"{"text":"disk space: monitored only (no quota on this file system)","routine":true}"#),
    (
        "sandbox.disk_full",
        r#"{"text":"its files use 1.9 GiB of 1.9 GiB: writes fail","used_bytes":2000000000,"limit_bytes":2000000000,"stopped":0}"#,
    ),
    (
        "setup.started",
        r#"{"source":"detected","steps":["npm ci"],"network":"packages","notes":["package-lock.json: npm"]}"#,
    ),
    ("setup.output", r#"{"step":1,"stream":"stdout","text":"added 211 packages in 4s\n","omitted_bytes":1024}"#),
    ("setup.step_completed", r#"{"step":1,"command":"npm ci","exit":{"kind":"exited","code":0},"seconds":4.2}"#),
    (
        "setup.completed",
        r#"{"seconds":4.6,"cached":false,"stored":true,"key":"4f2a9c0d","key_parts":{"commands":"9b1c7e30","root":"host"}}"#,
    ),
    (
        "setup.failed",
        r#"{"step":1,"command":"uv sync --frozen","exit":{"kind":"exited","code":127},"error":"step 1 failed: exit code 127","tail":"sh: 1: uv: not found","remedy":"install uv on this machine, or use an image that has it"}"#,
    ),
    ("setup.skipped", r#"{"reason":"the request turns it off"}"#),
    (
        "message.queued",
        r#"{"message_id":"msg_01k9z6m3q8e5t7v2x4y6a8b0cd","type":"user_message","delivery":"steer","position":1,"content":"add a test","content_bytes":10}"#,
    ),
    (
        "message.edited",
        r#"{"message_id":"msg_01k9z6m3q8e5t7v2x4y6a8b0cd","type":"user_message","delivery":"queue","position":1,"content":"add two tests","content_bytes":13}"#,
    ),
    (
        "message.cancelled",
        r#"{"message_id":"msg_01k9z6m3q8e5t7v2x4y6a8b0cd","state":"cancelled","how":null,"reason":null}"#,
    ),
    (
        "message.acknowledged",
        r#"{"message_id":"msg_01k9z6m3q8e5t7v2x4y6a8b0cd","state":"acknowledged","how":"injected","reason":null}"#,
    ),
    (
        "message.undeliverable",
        r#"{"message_id":"msg_01k9z6m3q8e5t7v2x4y6a8b0cd","state":"undeliverable","how":null,"reason":"the sandbox ended"}"#,
    ),
    (
        "message.delivered_unconfirmed",
        r#"{"message_id":"msg_01k9z6m3q8e5t7v2x4y6a8b0cd","state":"delivered_unconfirmed","how":"new_turn","reason":null}"#,
    ),
    ("network.changed", r#"{"policy":"allow","allow":["crates.io"]}"#),
    (
        "network.refused",
        r#"{"host":"example.org","port":443,"reason":"policy","count":1,"detail":"the policy does not allow example.org:443"}"#,
    ),
    ("model.refused", r#"{"reason":"budget","detail":"the project's budget is used up","count":1}"#),
    (
        "model.usage",
        r#"{"requests":12,"tokens":48200,"cost_usd":0.31,"model":"claude-sonnet-4-5","prompt_tokens":101200,"context":200000}"#,
    ),
    ("limit.warned", r#"{"limit":"cost_usd","value":5.0,"used":4.1,"agent_informed":false}"#),
    (
        "limit.paused",
        r#"{"limit":"project_budget","value":20.0,"used":20.0,"per":"day","until":"2026-01-03T00:00:00.000000Z","project_id":"prj_01k9z6m3q8e5t7v2x4y6a8b0cd"}"#,
    ),
    ("limit.resumed", r#"{"limit":"cost_usd"}"#),
    ("limit.changed", r#"{"before":{"turns":5},"limits":{"turns":10,"cost_usd":2.5}}"#),
    (
        "guardian.denied",
        r#"{"tool":"Bash","tool_use_id":"toolu_01","rule":"no-force-push","reason":"force pushes are not allowed","input":{"command":"git push -f"},"agent_informed":true}"#,
    ),
    (
        "guardian.changed",
        r#"{"tool":"Bash","tool_use_id":"toolu_01","input":{"command":"npm i"},"changed":{"command":"npm ci"}}"#,
    ),
    (
        "guardian.detected",
        r#"{"detector":"repeated_call","summary":"The agent called Bash 5 times in a row with the same result.","evidence":[12,15,18,21,24],"intervention_id":"itv_01k9z6m3q8e5t7v2x4y6a8b0cd","action":"nudge","tool":"Bash","times":5}"#,
    ),
    (
        "guardian.nudged",
        r#"{"text":"Atoll's guardian: you repeat the same call.","detector":"repeated_call","evidence":[12,15],"intervention_id":"itv_01k9z6m3q8e5t7v2x4y6a8b0cd","message_id":"msg_01k9z6m3q8e5t7v2x4y6a8b0cd"}"#,
    ),
    (
        "guardian.intervened",
        r#"{"intervention_id":"itv_01k9z6m3q8e5t7v2x4y6a8b0cd","detector":"repeated_call","action":"interrupt","summary":"The agent called Bash 15 times in a row with the same result.","evidence":[48,51]}"#,
    ),
    (
        "guardian.escalated",
        r#"{"intervention_id":"itv_01k9z6m3q8e5t7v2x4y6a8b0cd","detector":"talking","summary":"The agent wrote 16 texts in a row without using a tool.","evidence":[7,8,9]}"#,
    ),
    (
        "guardian.followed_up",
        r#"{"intervention_id":"itv_01k9z6m3q8e5t7v2x4y6a8b0cd","detector":"repeated_call","action":"nudge","outcome":"stopped","shown_by":61}"#,
    ),
    (
        "guardian.judged",
        r#"{"report":{"alignment":0.8,"phase":"testing","activity":"runs the tests","blockers":[],"steer":false,"message":null},"model":"claude-haiku-5-5","cost_usd":0.0004}"#,
    ),
    ("guardian.protected_path", r#"{"paths":[".github/workflows/ci.yml"],"count":1,"protected":[".github/"]}"#),
    ("preview.port_opened", r#"{"port":3000,"program":"node"}"#),
    ("preview.port_closed", r#"{"port":3000}"#),
    (
        "preview.created",
        r#"{"preview_id":"prv_01k9z6m3q8e5t7v2x4y6a8b0cd","port":3000,"expires_at":"2026-01-02T03:04:05.000000Z"}"#,
    ),
    ("preview.revoked", r#"{"preview_id":"prv_01k9z6m3q8e5t7v2x4y6a8b0cd","port":3000}"#),
    ("files.written", r#"{"path":"notes.md","bytes":120}"#),
    ("files.made", r#"{"path":"docs"}"#),
    ("files.moved", r#"{"from":"a.txt","to":"b.txt"}"#),
    ("files.deleted", r#"{"path":"b.txt"}"#),
    ("git.cloned", r#"{"commit":"1a2b3c4","branch":"atoll/add-a-test","repo":"/home/me/project","uncommitted":0}"#),
    (
        "git.branch_created",
        r#"{"branch":"atoll/add-a-test","commit":"5d6e7f8","base":"1a2b3c4","commits":1,"files":[{"path":"src/lib.rs","added":4,"removed":1}],"flagged":[],"notes":[],"repo":"/home/me/project"}"#,
    ),
    ("git.nothing_changed", r#"{"base":"1a2b3c4","repo":"/home/me/project"}"#),
    ("worktree.synced_in", r#"{"commit":"5d6e7f8","changed_files":1,"bytes":412}"#),
    ("worktree.synced_out", r#"{"base":"5d6e7f8","commit":"9a0b1c2","bytes":530}"#),
    (
        "git.pr_merged",
        r#"{"number":7,"url":"https://github.com/octo/hello/pull/7","branch":"feature/ATL-12-add-a-test","commit":"5d6e7f8"}"#,
    ),
    (
        "git.pr_closed",
        r#"{"number":7,"url":"https://github.com/octo/hello/pull/7","branch":"feature/ATL-12-add-a-test"}"#,
    ),
    (
        "git.reviewed",
        r#"{"number":7,"url":"https://github.com/octo/hello/pull/7#r1","branch":"feature/ATL-12-add-a-test","reviewer":"ann","verdict":"changes_requested","text":"Please add a test."}"#,
    ),
    (
        "git.check_failed",
        r#"{"name":"build","url":"https://github.com/octo/hello/runs/4","branch":"feature/ATL-12-add-a-test","commit":"5d6e7f8","conclusion":"failure","text":"2 tests failed"}"#,
    ),
    (
        "git.branch_moved",
        r#"{"branch":"feature/ATL-12-add-a-test","commit":"5d6e7f8","previous":"1a2b3c4","pusher":"ann"}"#,
    ),
    ("git.branch_deleted", r#"{"branch":"feature/ATL-12-add-a-test","previous":"5d6e7f8"}"#),
    (
        "git.push_flagged",
        r#"{"branch":"feature/ATL-12-add-a-test","commit":"5d6e7f8","paths":[".github/workflows/ci.yml"],"count":1}"#,
    ),
    (
        "git.pushed",
        r#"{"branch":"feature/ATL-12-add-a-test","commit":"5d6e7f8","previous":"1a2b3c4","repo":"https://github.com/octo/hello.git"}"#,
    ),
    (
        "git.push_failed",
        r#"{"branch":"feature/ATL-12-add-a-test","step":"push","code":"push_declined","detail":"the remote repository refused the push: commits need a ticket in their message"}"#,
    ),
    (
        "git.branch_updated",
        r#"{"branch":"feature/ATL-12-add-a-test","commit":"5d6e7f8","previous":"1a2b3c4","base":"9a0b1c2","method":"merge"}"#,
    ),
    (
        "git.conflict",
        r#"{"branch":"feature/ATL-12-add-a-test","commit":"5d6e7f8","base":"9a0b1c2","paths":["src/lib.rs"]}"#,
    ),
    (
        "git.pr_created",
        r#"{"number":7,"url":"https://github.com/octo/hello/pull/7","title":"[ATL-12] Add a test","branch":"feature/ATL-12-add-a-test","base":"main"}"#,
    ),
    (
        "git.pr_updated",
        r#"{"number":7,"url":"https://github.com/octo/hello/pull/7","title":"[ATL-12] Add a test","branch":"feature/ATL-12-add-a-test","base":"main"}"#,
    ),
    (
        "git.pr_failed",
        r#"{"branch":"feature/ATL-12-add-a-test","step":"pull_request","code":"forge_unavailable","detail":"the forge is unavailable: status 503","retry_s":4}"#,
    ),
    (
        "git.merge_waiting",
        r#"{"number":7,"url":"https://github.com/octo/hello/pull/7","reason":"checks are still running"}"#,
    ),
    (
        "git.merge_completed",
        r#"{"number":7,"url":"https://github.com/octo/hello/pull/7","branch":"feature/ATL-12-add-a-test","commit":"5d6e7f8"}"#,
    ),
    (
        "git.merge_failed",
        r#"{"branch":"feature/ATL-12-add-a-test","step":"merge","code":"merge_refused","detail":"a review requests changes"}"#,
    ),
    ("git.branch_removed", r#"{"branch":"feature/ATL-12-add-a-test","previous":"5d6e7f8"}"#),
    (
        "secrets.exposed",
        r#"{"text":"in the sandbox: NPM_TOKEN as $NPM_TOKEN","secrets":[{"name":"NPM_TOKEN","variable":"NPM_TOKEN"}]}"#,
    ),
    ("service.started", r#"{"name":"db","port":5432,"restarts":0}"#),
    ("service.ready", r#"{"name":"db","seconds":0.21}"#),
    (
        "service.exited",
        r#"{"name":"db","exit":{"kind":"signalled","signal":9},"detail":"was killed by signal 9","tail":"database system is ready","restart_s":0.25}"#,
    ),
    ("service.stopped", r#"{"name":"db"}"#),
    (
        "service.failed",
        r#"{"name":"db","reason":"not_started","detail":"exited with code 1 before it was ready","exit":{"kind":"exited","code":1},"tail":"could not bind 127.0.0.1:5432"}"#,
    ),
    ("task.assigned", r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","title":"Make the parser faster","retries":0}"#),
    ("task.running", r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","title":"Make the parser faster","retries":0}"#),
    ("task.warned", r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","left_s":720}"#),
    ("task.interrupted", r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","left_s":30}"#),
    ("task.validating", r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","title":"Make the parser faster","retries":0}"#),
    (
        "task.needs_revision",
        r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","feedback":"The new test fails.","revisions":1}"#,
    ),
    (
        "task.retrying",
        r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","class":"agent_crash","reason":{"code":"worker_died","detail":"its worker was killed by signal 9 during the work"},"retries":1,"retry_s":10}"#,
    ),
    ("task.completed", r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","title":"Make the parser faster","retries":0}"#),
    (
        "task.failed",
        r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","class":"task","reason":{"code":"agent_failed","detail":"the agent reported failure"},"retries":0}"#,
    ),
    ("task.cancelled", r#"{"task_id":"tsk_01k9z6m3q8e5t7v2x4y6a8b0cd","title":"Make the parser faster","retries":0}"#),
    ("session.opened", r#"{"session_id":"ses_01k9z6m3q8e5t7v2x4y6a8b0cd","title":"Add a test"}"#),
    ("session.changed", r#"{"session_id":"ses_01k9z6m3q8e5t7v2x4y6a8b0cd","title":"Add two tests","state":"open"}"#),
    ("session.closed", r#"{"session_id":"ses_01k9z6m3q8e5t7v2x4y6a8b0cd","title":"Add two tests","state":"closed"}"#),
    (
        "session.resumed",
        r#"{"session_id":"ses_01k9z6m3q8e5t7v2x4y6a8b0cd","title":"Add a test","native_id":"0d6f2c1e","transcript":"9f86d081"}"#,
    ),
    ("session.forked", r#"{"session_id":"ses_01k9z6m3q8e5t7v2x4y6a8b0cd","fork":"ses_01k9z6m3q8e5t7v2x4y6a8b0ce"}"#),
    ("worker.unreachable", r#"{"silent_s":45}"#),
    ("worker.reachable", r#"{"silent_s":62}"#),
    ("worker.restarted", r#"{"silent_s":120,"earlier":0}"#),
    ("sandbox.stalled", r#"{"without_work_s":900}"#),
    (
        "sandbox.idle",
        r#"{"idle_s":600,"action":"pause","saved":{"transcript":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08","diff":{"blob":"60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752","bytes":1834}}}"#,
    ),
    ("sandbox.work_saved", r#"{"problem":"the provider is unreachable: it did not respond"}"#),
    ("sandbox.provider_replaced", r#"{"requested":"docker","provider":"local"}"#),
    (
        "provider.circuit_opened",
        r#"{"provider":"docker","failures":5,"until":"2026-01-02T03:05:05.000000Z","detail":"the provider is unreachable: the provider timed out"}"#,
    ),
    ("provider.circuit_closed", r#"{"provider":"docker"}"#),
    (
        "session.restart_planned",
        r#"{"session_id":"ses_01k9z6m3q8e5t7v2x4y6a8b0cd","class":"provider","delay_s":10,"earlier":0}"#,
    ),
    (
        "session.escalated",
        r#"{"session_id":"ses_01k9z6m3q8e5t7v2x4y6a8b0cd","class":"agent_crash","reason":{"code":"agent_crashed","detail":"the agent ended with signal 11"},"restarts":3}"#,
    ),
];
