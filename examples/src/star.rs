//! Sums over the processes of a run, by plain TCP: every rank talks to rank 0.
//!
//! An example of what a training loop needs of its ranks, not a library: it holds all numbers in
//! memory, moves them through one process and ends the run when a rank is gone.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::Error;

/// What a rank says first, so that a stranger on the port is told from a rank.
const GREETING: [u8; 8] = *b"star v1\n";
/// How often a rank asks for rank 0, which may start last, and how long it waits in between.
const ATTEMPTS: u32 = 600;
const PAUSE: Duration = Duration::from_millis(100);

/// One rank's place among all.
#[derive(Debug)]
pub enum Star {
    /// Rank 0, with a connection to each other rank in their order.
    Center(Vec<TcpStream>),
    /// Another rank.
    Ray(TcpStream),
}

impl Star {
    /// Rank 0 of `world` ranks: waits until all others are there.
    ///
    /// # Errors
    /// Where a rank comes twice or something that is no rank of such a run.
    pub fn accept(listener: &TcpListener, world: u32) -> Result<Self, Error> {
        let mut rays: Vec<Option<TcpStream>> = (1..world).map(|_| None).collect();
        while rays.iter().any(Option::is_none) {
            let (mut stream, from) = listener.accept()?;
            stream.set_nodelay(true)?;
            let mut hello = [0; 16];
            stream.read_exact(&mut hello)?;
            let [rank, its_world] = [8, 12].map(|at| word(&hello, at));
            if hello[..8] != GREETING || its_world != world {
                return Err(format!("{from} is no rank of a run of {world} ranks").into());
            }
            let place = (rank as usize).checked_sub(1).and_then(|place| rays.get_mut(place));
            match place {
                Some(place @ None) => *place = Some(stream),
                _ => return Err(format!("rank {rank} of {world} came twice").into()),
            }
        }
        Ok(Self::Center(rays.into_iter().flatten().collect()))
    }

    /// Another rank: connects to rank 0, and waits a minute for it to be there.
    ///
    /// # Errors
    /// Where it isn't.
    pub fn connect(address: (&str, u16), rank: u32, world: u32) -> Result<Self, Error> {
        let mut attempt = 0;
        let mut stream = loop {
            attempt += 1;
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) if attempt == ATTEMPTS => {
                    let (host, port) = address;
                    return Err(format!("no rank 0 at {host}:{port}: {error}").into());
                }
                Err(_) => thread::sleep(PAUSE),
            }
        };
        stream.set_nodelay(true)?;
        stream.write_all(&GREETING)?;
        stream.write_all(&rank.to_le_bytes())?;
        stream.write_all(&world.to_le_bytes())?;
        Ok(Self::Ray(stream))
    }

    /// Replaces the numbers by their sums over all ranks, in the same order of additions whenever it
    /// runs; all ranks get the same sums.
    ///
    /// # Errors
    /// Where a rank is gone or sums something else.
    pub fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Error> {
        match self {
            Self::Center(rays) => {
                for (ray, rank) in rays.iter_mut().zip(1..) {
                    let theirs = receive(ray).map_err(|e| gone(rank, &e))?;
                    if theirs.len() != 4 * numbers.len() {
                        return Err(format!("rank {rank} sums something else").into());
                    }
                    for (number, more) in numbers.iter_mut().zip(theirs.chunks_exact(4)) {
                        *number += f32::from_bits(word(more, 0));
                    }
                }
                let bytes = bytes_of(numbers);
                for (ray, rank) in rays.iter_mut().zip(1..) {
                    send(ray, &bytes).map_err(|e| gone(rank, &e))?;
                }
            }
            Self::Ray(center) => {
                send(center, &bytes_of(numbers)).map_err(|e| gone(0, &e))?;
                let sums = receive(center).map_err(|e| gone(0, &e))?;
                for (number, sum) in numbers.iter_mut().zip(sums.chunks_exact(4)) {
                    *number = f32::from_bits(word(sum, 0));
                }
            }
        }
        Ok(())
    }

    /// What each rank has, in their order, at rank 0; nothing at the others.
    ///
    /// # Errors
    /// Where a rank is gone.
    pub fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        match self {
            Self::Center(rays) => {
                let mut all = vec![bytes.to_vec()];
                for (ray, rank) in rays.iter_mut().zip(1..) {
                    all.push(receive(ray).map_err(|e| gone(rank, &e))?);
                }
                Ok(all)
            }
            Self::Ray(center) => {
                send(center, bytes).map_err(|e| gone(0, &e))?;
                Ok(Vec::new())
            }
        }
    }
}

fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length =
        u32::try_from(bytes.len()).map_err(|e| io::Error::new(ErrorKind::InvalidInput, e))?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(bytes)
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    let mut bytes = Vec::new();
    // Grows with what comes, whatever length was said.
    stream.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() < length as usize {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

fn gone(rank: u32, error: &io::Error) -> String {
    format!("rank {rank} is gone: {error}")
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Four bytes of little-endian, 0 beyond the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn three_ranks_get_the_same_sums_and_rank_0_what_each_has() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let rank = |mut star: Star, rank: u8| {
            let mut numbers = [f32::from(rank), 1.0];
            star.sum(&mut numbers).unwrap();
            (numbers, star.gather(&[rank]).unwrap())
        };
        let rays = [1, 2].map(|number: u8| {
            thread::spawn(move || {
                let star = Star::connect(("127.0.0.1", port), u32::from(number), 3).unwrap();
                rank(star, number)
            })
        });
        let center = rank(Star::accept(&listener, 3).unwrap(), 0);
        assert_eq!(center, ([3.0, 3.0], vec![vec![0], vec![1], vec![2]]));
        for ray in rays {
            assert_eq!(ray.join().unwrap(), ([3.0, 3.0], vec![]));
        }
    }

    #[test]
    fn a_rank_that_is_gone_is_an_error_at_the_others() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let leaving =
            thread::spawn(move || Star::connect(("127.0.0.1", port), 1, 2).map(drop).ok());
        let mut center = Star::accept(&listener, 2).unwrap();
        leaving.join().unwrap();
        let error = center.sum(&mut [1.0]).unwrap_err().to_string();
        assert!(error.starts_with("rank 1 is gone"), "{error}");
    }
}
