//! Developer tools run in a sandbox: under the filter, without capabilities, with the host's tools read-only.

use std::path::Path;

use atoll_jail::ResourceLimits;

use crate::harness::{Harness, skip_test, spec};

fn check_tool(program: &str, script: &str) {
    check_tool_with_limits(program, spec("a").limits, script);
}

fn check_tool_with_limits(program: &str, limits: ResourceLimits, script: &str) {
    let Some(harness) = Harness::new() else { return };
    harness.launcher.prepare_sandbox(&atoll_jail::SandboxSpec { limits, ..spec("a") }).unwrap();
    if harness.run_shell("a", &format!("command -v {program}")).stdout.is_empty() {
        return skip_test("the tool is not installed where sandboxes see it");
    }
    let output = harness.shell_output("a", &format!("set -e; {script}"));
    assert!(output.ends_with("fine"), "{output}");
}

#[test]
fn git_works() {
    check_tool(
        "git",
        "git init -q r; cd r; git config user.email a@b; git config user.name a; echo x >f; git add f; git commit -qm x; git clone -q . ../s; git -C ../s log --oneline | wc -l; git gc -q; echo fine",
    );
}

#[test]
fn node_works() {
    check_tool(
        "node",
        "node -e 'const {execSync}=require(\"child_process\"); const os=require(\"os\"); require(\"fs\").promises.readFile(\"/etc/passwd\").then(()=>{ new (require(\"worker_threads\").Worker)(\"console.log(execSync)\".replace(\"execSync\",\"1\"),{eval:true}).on(\"exit\",()=>console.log(execSync(\"echo fine\").toString())) })'",
    );
}

#[test]
fn python_works() {
    check_tool(
        "python3",
        "python3 -c 'import subprocess,threading,multiprocessing,ssl,asyncio; t=threading.Thread(target=lambda:0); t.start(); t.join(); p=multiprocessing.Pool(2); p.map(abs,[1,2]); p.close(); print(subprocess.check_output([\"echo\",\"fine\"]).decode())'",
    );
}

#[test]
fn gcc_works() {
    check_tool("gcc", "echo 'int main(){return 0;}' >a.c; gcc -O2 a.c -o a; ./a; echo fine");
}

#[test]
fn cargo_works() {
    check_tool(
        "cargo",
        "cargo --version; cargo init -q --name x --vcs none x; cd x; cargo run -q --offline | grep Hello; echo fine",
    );
}

/// With a dependency, a build script and tests.
#[test]
fn cargo_builds_a_workspace() {
    let limits = ResourceLimits { memory_bytes: 1 << 30, ..spec("a").limits };
    check_tool_with_limits(
        "cargo",
        limits,
        r#"cargo new -q --vcs none app; cargo new -q --vcs none --lib app/part; cd app
printf '[dependencies]\npart = { path = "part" }\n' >dependencies
sed -i '/^\[dependencies\]/d' Cargo.toml; cat dependencies >>Cargo.toml
echo 'fn main() { println!("cargo:rustc-env=BUILT=yes"); }' >build.rs
echo 'pub fn sum(a: u32, b: u32) -> u32 { a + b } #[test] fn sums() { assert_eq!(sum(2, 2), 4); }' >part/src/lib.rs
echo 'fn main() { println!("{} {}", part::sum(40, 2), env!("BUILT")); }' >src/main.rs
cargo build -q --offline; ./target/debug/app | grep -qx '42 yes'; cargo test -q --offline -p part >/dev/null; echo fine"#,
    );
}

/// Go's runtime creates threads and makes system calls without libc.
#[test]
fn go_works() {
    let limits = ResourceLimits { memory_bytes: 1 << 30, pids: 400, ..spec("a").limits };
    let program = r#"package main

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"sync"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() {
		connection, _ := listener.Accept()
		io.WriteString(connection, "fi")
		connection.Close()
	}()
	connection, err := net.Dial("tcp", listener.Addr().String())
	must(err)
	first, err := io.ReadAll(connection)
	must(err)
	var group sync.WaitGroup
	for n := 0; n < 50; n++ {
		group.Add(1)
		go func() { defer group.Done() }()
	}
	group.Wait()
	second, err := exec.Command("echo", "-n", "ne").Output()
	must(err)
	fmt.Println(string(first) + string(second))
}
"#;
    let build = "go mod init example.org/x 2>/dev/null; CGO_ENABLED=0 go build -o app .; go vet .; ./app";
    check_tool_with_limits("go", limits, &format!("mkdir g; cd g; cat >main.go <<'END'\n{program}END\n{build}"));
}

/// A page with a script, a worker thread and a canvas.
#[test]
fn chromium_works() {
    let limits = ResourceLimits { memory_bytes: 2 << 30, pids: 1000, ..spec("a").limits };
    let page = "<p id=a></p><canvas id=c></canvas><script>
document.getElementById('c').getContext('2d').fillRect(0, 0, 5, 5);
const worker = new Worker(URL.createObjectURL(new Blob(['postMessage(6 * 7)'])));
worker.onmessage = event => document.getElementById('a').textContent = 'is ' + event.data;
</script>
";
    let browser = "timeout 100 chromium --headless --no-sandbox --disable-gpu --virtual-time-budget=5000";
    let look = format!(
        "{browser} --dump-dom file://$PWD/page.html >page 2>errors || {{ tail -5 errors; exit 1; }}
grep -q 'is 42' page || {{ cat page; tail -5 errors; exit 1; }}
if grep Fontconfig errors; then exit 1; fi
{browser} --screenshot=shot.png file://$PWD/page.html >/dev/null 2>&1; test -s shot.png; echo fine"
    );
    check_tool_with_limits("chromium", limits, &format!("cat >page.html <<'END'\n{page}END\n{look}"));
}

#[test]
fn shell_tools_work() {
    check_tool(
        "bash",
        "bash -lc 'echo $HOME' | grep -q /home/agent; tar -C /etc -cf - passwd | tar -tf - | grep -q passwd; echo a | grep a | sed s/a/b/ | awk '{print}'; script -qc 'tty' /dev/null | grep -q /dev/pts; whoami | grep -q agent; date >/dev/null; df /workspace >/dev/null; ps -ef >/dev/null; echo fine",
    );
    assert!(Path::new("/bin/sh").exists());
}
