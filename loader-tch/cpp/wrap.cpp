// Foreign memory as a tensor that owns it: what tch's from_blob lacks is the owner.

#include <cstdint>
#include <cstring>
#include <exception>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

namespace {

void describe(const char *what, char *error, size_t room) {
  std::strncpy(error, what, room - 1);
  error[room - 1] = '\0';
}

} // namespace

// A contiguous CPU tensor over `data`. `release(owner)` is called exactly once: when the last tensor
// over the storage is gone, or before this returns null. Null leaves a message in `error`, which has
// room for `room` bytes. `dtype` counts as loader_core::DType does in wrap.rs.
extern "C" at::Tensor *loader_tch_wrap(void *data, const int64_t *sizes, size_t dims, int dtype,
                                       void *owner, void (*release)(void *), char *error,
                                       size_t room) noexcept {
  // From here on the maker, then the storage, owns the owner.
  auto maker = at::for_blob(data, at::IntArrayRef(sizes, dims));
  maker.context(owner, release);
  try {
    constexpr at::ScalarType types[] = {at::kByte, at::kHalf,  at::kBFloat16, at::kFloat, at::kLong,
                                        at::kChar, at::kShort, at::kInt,      at::kDouble};
    maker.options(at::TensorOptions(at::kCPU).dtype(types[dtype]));
    return new at::Tensor(maker.make_tensor());
  } catch (const std::exception &e) {
    describe(e.what(), error, room);
  } catch (...) {
    describe("an exception of unknown type", error, room);
  }
  return nullptr;
}
