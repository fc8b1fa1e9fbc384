//! Servers with canned responses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

/// The first line and the body of a request.
pub struct ReceivedRequest {
    pub line: String,
    pub body: String,
}

/// Starts a server that gives one response; returns its URL and the request.
pub fn serve_response(content_type: &'static str, response: Vec<u8>) -> (String, mpsc::Receiver<ReceivedRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        drop(sender.send(respond(stream, content_type, &response)));
    });
    (url, requests)
}

/// Starts a server that gives each request the first response whose path is part of the request's path.
pub fn serve_responses(
    responses: Vec<(&'static str, &'static str, Vec<u8>)>,
) -> (String, mpsc::Receiver<ReceivedRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut line = [0; 200];
            let length = stream.peek(&mut line).unwrap();
            let line = String::from_utf8_lossy(&line[..length]).into_owned();
            let path = line.split(' ').nth(1).unwrap_or_default();
            let found = responses.iter().find(|(part, ..)| path.contains(part));
            let Some((_, content_type, response)) = found else { return };
            if sender.send(respond(stream, content_type, response)).is_err() {
                return;
            }
        }
    });
    (url, requests)
}

fn respond(stream: TcpStream, content_type: &str, response: &[u8]) -> ReceivedRequest {
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
    stream.write_all(response).unwrap();
    ReceivedRequest { line, body: String::from_utf8(body).unwrap() }
}
