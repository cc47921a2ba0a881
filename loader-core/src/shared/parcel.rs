//! Values on their way to another process of this program: what serde writes of them, and beside it the
//! descriptors of the shared memory that they hold. An array or a table travels as a number that says
//! which descriptor is its memory, however large it is, and the same memory travels once.
//!
//! The bytes are MessagePack: it keeps every float as it is and describes itself, which untagged enums
//! and the like need.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::shm::{FileId, SharedBytes};

/// Maps that a [`Kept`] holds at most; each has a descriptor, of which there are not that many.
const KEPT: usize = 16;

/// A packed value.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) bytes: Vec<u8>,
    /// To be sent along, by their descriptors, in this order.
    pub(crate) held: Vec<SharedBytes>,
}

/// Why a value can't travel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ParcelError(pub(crate) String);

thread_local! {
    /// The memory held by the value that this thread packs at present.
    static PACKING: RefCell<Option<Vec<SharedBytes>>> = const { RefCell::new(None) };
    /// The memory that came with the value that this thread unpacks at present.
    static UNPACKING: RefCell<Option<Vec<SharedBytes>>> = const { RefCell::new(None) };
}

/// What came with the last values, so that a table which comes with every task is mapped once, and its
/// pages are met once.
#[derive(Debug, Default)]
pub(crate) struct Kept(Vec<SharedBytes>);

/// Empties a list when it goes, also where the user's code panics.
struct Ending(&'static std::thread::LocalKey<RefCell<Option<Vec<SharedBytes>>>>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.with(|list| list.borrow_mut().take());
    }
}

/// Packs a value with all shared memory that it holds.
pub(crate) fn pack<T: Serialize + ?Sized>(value: &T) -> Result<Parcel, ParcelError> {
    PACKING.with(|list| *list.borrow_mut() = Some(Vec::new()));
    let _ending = Ending(&PACKING);
    let bytes = rmp_serde::to_vec_named(value).map_err(|e| ParcelError(e.to_string()))?;
    let held = PACKING.with(|list| list.borrow_mut().take()).unwrap_or_default();
    Ok(Parcel { bytes, held })
}

/// Unpacks a value that came with those descriptors.
pub(crate) fn unpack<T: DeserializeOwned>(
    bytes: &[u8],
    files: Vec<OwnedFd>,
) -> Result<T, ParcelError> {
    Kept::default().unpack(bytes, files)
}

impl Kept {
    /// Unpacks a value, with the maps that are kept where they are of the same files.
    pub(crate) fn unpack<T: DeserializeOwned>(
        &mut self,
        bytes: &[u8],
        files: Vec<OwnedFd>,
    ) -> Result<T, ParcelError> {
        let mapped = files.into_iter().map(|file| self.map(file)).collect::<io::Result<Vec<_>>>();
        let mapped = mapped.map_err(|e| ParcelError(format!("mapping what came with it: {e}")))?;
        let older = std::mem::take(&mut self.0);
        for bytes in mapped.iter().chain(&older) {
            if self.0.len() < KEPT && self.0.iter().all(|kept| kept.id() != bytes.id()) {
                self.0.push(bytes.clone());
            }
        }
        UNPACKING.with(|list| *list.borrow_mut() = Some(mapped));
        let _ending = Ending(&UNPACKING);
        rmp_serde::from_slice(bytes).map_err(|e| ParcelError(e.to_string()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn map(&self, file: OwnedFd) -> io::Result<SharedBytes> {
        let file = File::from(file);
        let id = FileId::of(&file)?;
        // A file is kept by its map, so that no other one has its number.
        let kept = self.0.iter().find(|kept| kept.id() == id).cloned();
        kept.map_or_else(|| SharedBytes::of_file(file), Ok)
    }
}

/// Has memory travel with the value that is being packed, and gives its number in the parcel. `None`
/// where no value is: who serialises to somewhere else gets a handle instead.
pub(crate) fn enclose(bytes: &SharedBytes) -> Option<u32> {
    PACKING.with(|list| {
        let mut list = list.borrow_mut();
        let list = list.as_mut()?;
        let at = list.iter().position(|held| held.id() == bytes.id()).unwrap_or_else(|| {
            list.push(bytes.clone());
            list.len() - 1
        });
        u32::try_from(at).ok()
    })
}

/// Memory that came with the value that is being unpacked; `None` where there is none of that number.
pub(crate) fn enclosed(number: u32) -> Option<SharedBytes> {
    UNPACKING.with(|list| list.borrow().as_ref()?.get(number as usize).cloned())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::*;
    use crate::shm::MemoryError;

    #[derive(Clone)]
    struct Shared(SharedBytes);

    impl Serialize for Shared {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            enclose(&self.0).ok_or_else(|| serde::ser::Error::custom("not packed"))?.serialize(to)
        }
    }

    impl<'de> Deserialize<'de> for Shared {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            let bytes = enclosed(u32::deserialize(from)?);
            bytes.map(Self).ok_or_else(|| serde::de::Error::custom("not there"))
        }
    }

    fn made(text: &[u8]) -> Shared {
        let made = SharedBytes::in_memory::<MemoryError>("test", text.len(), |bytes| {
            bytes.copy_from_slice(text);
            Ok(())
        });
        Shared(made.unwrap())
    }

    fn files(parcel: &Parcel) -> Vec<OwnedFd> {
        parcel.held.iter().map(|held| held.as_fd().try_clone_to_owned().unwrap()).collect()
    }

    #[test]
    fn memory_travels_as_a_descriptor_and_once() {
        let (a, b) = (made(b"first"), made(b"second"));
        let parcel = pack(&(&a, &b, &a, f64::NAN)).unwrap();
        assert_eq!(parcel.held.len(), 2);
        let (x, y, z, nan): (Shared, Shared, Shared, f64) =
            unpack(&parcel.bytes, files(&parcel)).unwrap();
        assert_eq!([x.0.bytes(), y.0.bytes()], [&b"first"[..], b"second"]);
        assert_eq!(x.0.bytes().as_ptr(), z.0.bytes().as_ptr());
        assert!(nan.is_nan());
    }

    #[test]
    fn what_came_lately_is_not_mapped_again() {
        let parcels = [b"first", b"other"].map(|text| pack(&made(text)).unwrap());
        let mut kept = Kept::default();
        let mut unpack =
            |parcel: &Parcel| -> Shared { kept.unpack(&parcel.bytes, files(parcel)).unwrap() };
        let x = unpack(&parcels[0]);
        unpack(&parcels[1]);
        assert_eq!(x.0.bytes().as_ptr(), unpack(&parcels[0]).0.bytes().as_ptr());
        for n in 0..100u8 {
            unpack(&pack(&made(&[n])).unwrap());
        }
        assert_ne!(x.0.bytes().as_ptr(), unpack(&parcels[0]).0.bytes().as_ptr());
        assert_eq!(kept.0.len(), KEPT);
    }

    #[test]
    fn outside_of_a_parcel_there_is_nothing_to_enclose() {
        let a = made(b"first");
        assert!(serde_json::to_string(&a).unwrap_err().to_string().contains("not packed"));
        let parcel = pack(&a).unwrap();
        let lost = unpack::<Shared>(&parcel.bytes, Vec::new()).map(drop);
        assert_eq!(lost, Err(ParcelError("not there".to_owned())));
        assert!(enclosed(0).is_none());
    }
}
