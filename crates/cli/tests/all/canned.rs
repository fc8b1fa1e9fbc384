//! A server that gives one answer, whatever it is asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

/// What it was asked: the first line, and the body.
pub struct Asked {
    pub line: String,
    pub body: String,
}

/// Where it listens, and what it will have been asked.
pub fn answering(content_type: &'static str, answer: Vec<u8>) -> (String, mpsc::Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        drop(sender.send(give(stream, content_type, &answer)));
    });
    (url, asked)
}

/// One that gives each request the first answer whose path its own contains; others get a refusal.
pub fn answering_each(answers: Vec<(&'static str, &'static str, Vec<u8>)>) -> (String, mpsc::Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut line = [0; 200];
            let seen = stream.peek(&mut line).unwrap();
            let line = String::from_utf8_lossy(&line[..seen]).into_owned();
            let path = line.split(' ').nth(1).unwrap_or_default();
            let found = answers.iter().find(|(part, ..)| path.contains(part));
            let Some((_, content_type, answer)) = found else { return };
            if sender.send(give(stream, content_type, answer)).is_err() {
                return;
            }
        }
    });
    (url, asked)
}

fn give(stream: TcpStream, content_type: &str, answer: &[u8]) -> Asked {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let mut length = 0;
    loop {
        let mut header = String::new();
        lines.read_line(&mut header).unwrap();
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body).unwrap();
    let mut stream = stream;
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nexec-id: exe_1\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(answer).unwrap();
    Asked { line, body: String::from_utf8(body).unwrap() }
}
