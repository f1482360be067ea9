//! Chromium without a window, by its DevTools protocol over a pipe.

use serde_json::{Value, json};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// The longest that an answer may take: far above what it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Names of the program.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one page. It has a network namespace without any network, and is gone with this
/// object.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<Value>,
    session: Option<String>,
    number: u64,
    /// What the console said, and errors.
    complaints: Vec<String>,
}

impl Browser {
    /// Starts the browser; nothing if there is none here. Its files go into the folder.
    pub(crate) fn start(folder: &Path) -> Option<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let is_there =
            |name: &&&str| env::split_paths(&path).any(|folder| folder.join(name).exists());
        let program = PROGRAMS.iter().find(is_there)?;
        let isolate = ["-n", "-rn"].into_iter().find(|flags| {
            let probe = Command::new("unshare").args([flags, "true"]).output();
            probe.is_ok_and(|output| output.status.success())
        })?;
        // The protocol is spoken on descriptors 3 and 4. Its own sandbox needs rights that a
        // namespace of a user does not give; the pages are our own.
        let line = format!(
            "exec unshare {isolate} {program} --headless=new --no-sandbox --disable-gpu \
             --disable-dev-shm-usage --no-first-run --remote-debugging-pipe \
             --user-data-dir=\"$0\" about:blank 3<&0 4>&1 </dev/null >/dev/null"
        );
        let mut child = Command::new("sh")
            .args(["-c", &line])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let commands = child.stdin.take().expect("a pipe");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        thread::spawn(move || {
            for answer in said.split(0).map_while(Result::ok) {
                let answer = serde_json::from_slice(&answer).expect("JSON");
                if sender.send(answer).is_err() {
                    break;
                }
            }
        });
        let mut browser =
            Self { child, commands, answers, session: None, number: 0, complaints: Vec::new() };
        let page = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(Into::into);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let text = message.to_string() + "\0";
        self.commands.write_all(text.as_bytes()).expect("the browser runs");
        loop {
            let answer = self.answers.recv_timeout(PATIENCE);
            let mut answer = answer.unwrap_or_else(|_| panic!("{method}: no answer"));
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            let event = answer["method"].as_str().unwrap_or_default();
            if ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"]
                .contains(&event)
            {
                self.complaints.push(answer["params"].to_string());
            }
        }
    }

    /// Evaluates an expression in the page. A promise is waited for.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.call("Runtime.evaluate", &parameters);
        let exception = &answer["exceptionDetails"];
        assert!(exception.is_null(), "{expression}: {exception}");
        answer["result"]["value"].take()
    }

    /// What an expression that is text says.
    pub(crate) fn text(&mut self, expression: &str) -> String {
        self.evaluate(expression).as_str().expect(expression).to_owned()
    }

    /// What an expression that is a number says.
    pub(crate) fn number(&mut self, expression: &str) -> f64 {
        self.evaluate(expression).as_f64().expect(expression)
    }

    /// Opens a file in a window of this size.
    pub(crate) fn open(&mut self, page: &Path, width: u32, height: u32) {
        self.resize(width, height);
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", &json!({ "url": url }));
        self.evaluate(
            "new Promise((done) => document.readyState === 'complete' ? done() : \
             addEventListener('load', () => done()))",
        );
        self.settle();
    }

    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
        self.settle();
    }

    /// Waits until the page has drawn what it has to draw: observers are told after a frame, and
    /// what they draw is there after the next.
    pub(crate) fn settle(&mut self) {
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => \
             requestAnimationFrame(() => setTimeout(done)))))",
        );
    }

    /// Moves or presses the pointer: "mouseMoved", "mousePressed", "mouseReleased".
    pub(crate) fn pointer(&mut self, kind: &str, [x, y]: [f64; 2], clicks: u32) {
        let button = if kind == "mouseMoved" { "none" } else { "left" };
        let held = u32::from(kind != "mouseReleased" && clicks > 0);
        let event = json!({
            "type": kind, "x": x, "y": y, "button": button, "buttons": held, "clickCount": clicks,
        });
        self.call("Input.dispatchMouseEvent", &event);
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", &json!({ "type": kind, "key": key }));
        }
        self.settle();
    }

    /// What the console said since the last call, and errors.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        self.settle();
        std::mem::take(&mut self.complaints)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends its other processes when the pipe closes or it is asked to; killed, it would
        // leave them to find that out.
        let close = json!({ "id": 0, "method": "Browser.close" }).to_string() + "\0";
        let asked = self.commands.write_all(close.as_bytes());
        let ended = |answers: &Receiver<Value>| loop {
            match answers.recv_timeout(Duration::from_secs(10)) {
                Ok(_) => {}
                Err(error) => break error == std::sync::mpsc::RecvTimeoutError::Disconnected,
            }
        };
        if asked.is_err() || !ended(&self.answers) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
