// SPDX-License-Identifier: Apache-2.0
// From Python's arrays to heed's views, without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <heed/tensor.hpp>

#include <string>

namespace heed::python {

namespace nb = nanobind;

/// Memory that an object lends through Python's buffer protocol (NumPy arrays do): a fifth of the time that DLPack takes.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (is_held_) PyBuffer_Release(&buffer_);
  }
  /// False where the object has none, or none with these flags; no exception is left behind.
  bool take(nb::handle object, int flags);
  [[nodiscard]] const Py_buffer& get() const noexcept { return buffer_; }

 private:
  Py_buffer buffer_ = {};
  bool is_held_ = false;
};

/// An argument array: what keeps its memory alive, and the view. `None` gives a view that is "not given".
///
/// Takes any object with a buffer or `__dlpack__`, and the tuple (address, dtype, shape, strides) that the Python layer makes of arrays whose
/// protocol is slow (torch) or absent (ml_dtypes); whoever makes one keeps the memory alive.
template <class View, class Owner>
class BasicArray {
 public:
  /// Throws TypeError naming the argument when it is no array, or not one in CPU memory.
  BasicArray(nb::handle object, const char* name);

  [[nodiscard]] const View& view() const noexcept { return view_; }
  operator const View&() const noexcept { return view_; }  // NOLINT(google-explicit-constructor)

 private:
  Buffer buffer_;
  Owner owner_;
  View view_;
};

/// To read; read-only memory is fine.
using Array = BasicArray<TensorView, nb::ndarray<nb::ro>>;
/// To write to; read-only memory is a ValueError.
using OutputArray = BasicArray<MutableTensorView, nb::ndarray<>>;

/// What an Array takes, of an array that a user gave to a class of this module: heed._arrays reads it, as it does for the functions.
/// Numbers and lists become arrays of `dtype`. A tuple is a list of numbers then, never an address.
[[nodiscard]] nb::object argument_of(nb::handle object, const char* name, const char* dtype);

/// TypeError and ValueError "name: problem".
[[noreturn]] void throw_type(const char* name, const std::string& problem);
[[noreturn]] void throw_value(const char* name, const std::string& problem);
[[nodiscard]] std::string name_of_type(nb::handle object);

/// The order of axes 1 and 2 of the caller's arrays: tokens before heads, or heads before tokens.
enum class Layout : std::uint8_t { kTokensFirst, kHeadsFirst };
/// "BLHD" or "BHLD"; ValueError otherwise.
[[nodiscard]] Layout parse_layout(std::string_view text);

/// As [B, L, H, D].
template <class View>
[[nodiscard]] View tokens_first(const View& view, Layout layout) {
  return layout == Layout::kHeadsFirst && view.rank() == 4 ? permute(view, {0, 2, 1, 3}) : view;
}

}  // namespace heed::python
