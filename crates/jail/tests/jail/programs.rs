//! What developers run, runs.

use std::path::Path;

use crate::harness::{Harness, skip};

fn runs(program: &str, script: &str) {
    let Some(harness) = Harness::new() else { return };
    harness.prepared("a");
    if harness.shell("a", &format!("command -v {program}")).stdout.is_empty() {
        return skip("it is not installed where sandboxes see it");
    }
    let said = harness.said("a", &format!("set -e; {script}"));
    assert!(said.ends_with("fine"), "{said}");
}

#[test]
fn git() {
    runs(
        "git",
        "git init -q r; cd r; git config user.email a@b; git config user.name a; echo x >f; git add f; git commit -qm x; git clone -q . ../s; git -C ../s log --oneline | wc -l; git gc -q; echo fine",
    );
}

#[test]
fn node() {
    runs(
        "node",
        "node -e 'const {execSync}=require(\"child_process\"); const os=require(\"os\"); require(\"fs\").promises.readFile(\"/etc/passwd\").then(()=>{ new (require(\"worker_threads\").Worker)(\"console.log(execSync)\".replace(\"execSync\",\"1\"),{eval:true}).on(\"exit\",()=>console.log(execSync(\"echo fine\").toString())) })'",
    );
}

#[test]
fn python() {
    runs(
        "python3",
        "python3 -c 'import subprocess,threading,multiprocessing,ssl,asyncio; t=threading.Thread(target=lambda:0); t.start(); t.join(); p=multiprocessing.Pool(2); p.map(abs,[1,2]); p.close(); print(subprocess.check_output([\"echo\",\"fine\"]).decode())'",
    );
}

#[test]
fn gcc() {
    runs("gcc", "echo 'int main(){return 0;}' >a.c; gcc -O2 a.c -o a; ./a; echo fine");
}

#[test]
fn cargo() {
    runs(
        "cargo",
        "cargo --version; cargo init -q --name x --vcs none x; cd x; cargo run -q --offline | grep Hello; echo fine",
    );
}

#[test]
fn shell_tools() {
    runs(
        "bash",
        "bash -lc 'echo $HOME' | grep -q /home/agent; tar -C /etc -cf - passwd | tar -tf - | grep -q passwd; echo a | grep a | sed s/a/b/ | awk '{print}'; script -qc 'tty' /dev/null | grep -q /dev/pts; whoami | grep -q agent; date >/dev/null; df /workspace >/dev/null; ps -ef >/dev/null; echo fine",
    );
    assert!(Path::new("/bin/sh").exists());
}
