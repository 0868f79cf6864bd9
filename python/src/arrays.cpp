// SPDX-License-Identifier: Apache-2.0
#include "arrays.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <optional>
#include <string>
#include <type_traits>

namespace heed::python {

void throw_type(const char* name, const std::string& problem) { throw nb::type_error((std::string(name) + ": " + problem).c_str()); }
void throw_value(const char* name, const std::string& problem) { throw nb::value_error((std::string(name) + ": " + problem).c_str()); }
std::string name_of_type(nb::handle object) { return nb::cast<std::string>(nb::type_name(object.type())); }

namespace {

std::optional<DType> dtype_of_code(nb::dlpack::dtype dtype) {
  using nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return std::nullopt;
  const auto code = static_cast<dtype_code>(dtype.code);
  if (code == dtype_code::Float && dtype.bits == 32) return DType::kFloat32;
  if (code == dtype_code::Bfloat && dtype.bits == 16) return DType::kBFloat16;
  if (code == dtype_code::Float && dtype.bits == 16) return DType::kFloat16;
  if (code == dtype_code::Float && dtype.bits == 64) return DType::kFloat64;
  if (code == dtype_code::Bool && dtype.bits == 8) return DType::kBool;
  if (code == dtype_code::Int && dtype.bits == 32) return DType::kInt32;
  if (code == dtype_code::Int && dtype.bits == 64) return DType::kInt64;
  return std::nullopt;
}

std::optional<DType> dtype_of_name(std::string_view name) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kBool, DType::kInt32, DType::kInt64}) {
    if (name == to_string(dtype)) return dtype;
  }
  return std::nullopt;
}

std::string text_of(nb::handle object) { return nb::cast<std::string>(nb::steal<nb::str>(PyObject_Str(object.ptr()))); }

/// Something that is no array, or one of a type that heed does not have.
[[noreturn]] void throw_no_array(const char* name, nb::handle object, const std::string& why = "") {
  if (!nb::hasattr(object, "dtype")) throw_type(name, "expected an array, got " + name_of_type(object));
  const std::string dtype = text_of(nb::object(object.attr("dtype")));
  if (dtype_of_name(dtype)) throw_type(name, "expected an array, got " + name_of_type(object) + " whose memory cannot be read" + why);
  throw_type(name, "dtype " + dtype +
                       " is not supported: expected float32, bfloat16, float16, float64, bool, int32 or int64 in the machine's byte order");
}

void check_rank(const char* name, std::size_t rank) {
  if (rank > static_cast<std::size_t>(kMaxRank)) {
    throw_value(name, "expected at most " + std::to_string(kMaxRank) + " axes, got " + std::to_string(rank));
  }
}

Extents extents_of(const char* name, nb::handle sequence) {
  // torch.Size is a tuple; converted as a sequence of any kind it would be copied by iteration, in 0.2 us each.
  const nb::tuple values = PyTuple_Check(sequence.ptr()) != 0 ? nb::borrow<nb::tuple>(sequence) : nb::tuple(sequence);
  check_rank(name, values.size());
  std::int64_t copy[kMaxRank] = {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!nb::try_cast(values[i], copy[i]))
      throw_type(name, "expected an array with integers as sizes and strides");  // torch's nested tensors
  }
  return Extents(std::span<const std::int64_t>(copy, values.size()));
}

/// (address, dtype name, shape, strides in elements).
template <class View>
View view_of_tuple(const char* name, nb::handle object) {
  const auto parts = nb::borrow<nb::tuple>(object);
  if (parts.size() != 4) throw_type(name, "expected an array");
  std::string_view dtype_name;
  if (!nb::try_cast(parts[1], dtype_name)) throw_type(name, "expected the name of a dtype, got " + name_of_type(parts[1]));
  const auto dtype = dtype_of_name(dtype_name);
  if (!dtype) throw_type(name, "dtype " + text_of(parts[1]) + " is not supported");
  std::uintptr_t address = 0;
  if (!nb::try_cast(parts[0], address)) throw_type(name, "expected an array");
  auto* data = reinterpret_cast<void*>(address);
  return View(data, *dtype, extents_of(name, parts[2]), extents_of(name, parts[3]));
}

template <class View, class Ndarray>
View view_of_ndarray(const char* name, nb::handle object, const Ndarray& array) {
  const auto dtype = dtype_of_code(array.dtype());
  if (!dtype) throw_no_array(name, object);
  check_rank(name, array.ndim());
  std::int64_t shape[kMaxRank] = {}, strides[kMaxRank] = {};
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape[i] = static_cast<std::int64_t>(array.shape(i));
    strides[i] = array.stride(i);
  }
  return View(array.data(), *dtype, Extents(std::span<const std::int64_t>(shape, array.ndim())),
              Extents(std::span<const std::int64_t>(strides, array.ndim())));
}

/// The type that a buffer's format names; none for other sizes, byte orders and structures.
std::optional<DType> dtype_of_format(const Py_buffer& buffer) {
  const std::string_view format = buffer.format != nullptr ? buffer.format : "B";
  if (format.empty()) return std::nullopt;
  const char code = format.back();
  if (format.size() > 2 || (format.size() == 2 && format[0] != '=' && format[0] != '<' && format[0] != '@')) return std::nullopt;
  switch (code) {
    case 'f': return DType::kFloat32;
    case 'd': return DType::kFloat64;
    case 'e': return DType::kFloat16;
    case '?': return DType::kBool;
    case 'i':
    case 'l':
    case 'q': return buffer.itemsize == 8 ? DType::kInt64 : DType::kInt32;
    default: return std::nullopt;
  }
}

template <class View>
std::optional<View> view_of_buffer(const char* name, const Py_buffer& buffer) {
  const auto dtype = dtype_of_format(buffer);
  if (!dtype) return std::nullopt;
  check_rank(name, static_cast<std::size_t>(buffer.ndim));
  std::int64_t shape[kMaxRank] = {}, strides[kMaxRank] = {};
  for (int i = 0; i < buffer.ndim; ++i) {
    shape[i] = buffer.shape[i];
    strides[i] = buffer.strides[i] / buffer.itemsize;
    if (buffer.strides[i] % buffer.itemsize != 0) {
      throw_value(name, "strides that are no multiple of the element size are not supported");
    }
  }
  const auto rank = static_cast<std::size_t>(buffer.ndim);
  return View(buffer.buf, *dtype, Extents(std::span<const std::int64_t>(shape, rank)),
              Extents(std::span<const std::int64_t>(strides, rank)));
}

/// What `__dlpack__` hands out, or the object itself where it has none. Asked here: nanobind forgets what it raises, a Ctrl-C too, and takes a
/// capsule twice that is handed out twice.
nb::object capsule_of(nb::handle object, std::string& why) {
  if (!nb::hasattr(object, "__dlpack__")) return nb::borrow(object);
  const nb::object method = object.attr("__dlpack__");
  const auto failed = [&why](const nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw error;
    why = ": " + text_of(error.value());
    return nb::none();
  };
  try {
    return method(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) return failed(error);  // who is older than max_version takes no argument of this name
  }
  try {
    return method();
  } catch (const nb::python_error& error) {
    return failed(error);
  }
}

}  // namespace

bool Buffer::take(nb::handle object, int flags) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  is_held_ = PyObject_GetBuffer(object.ptr(), &buffer_, flags) == 0;
  if (!is_held_) PyErr_Clear();
  return is_held_;
}

template <class View, class Owner>
BasicArray<View, Owner>::BasicArray(nb::handle object, const char* name) {
  constexpr bool kWrites = std::is_same_v<View, MutableTensorView>;
  if (object.is_none()) return;
  if (PyTuple_CheckExact(object.ptr()) != 0) {
    view_ = view_of_tuple<View>(name, object);
    return;
  }
  if (buffer_.take(object, PyBUF_STRIDES | PyBUF_FORMAT)) {
    if (kWrites && buffer_.get().readonly != 0) throw_value(name, "expected a writable array, got a read-only one");
    if (const auto view = view_of_buffer<View>(name, buffer_.get())) {
      view_ = *view;
      return;
    }
  }
  std::string why;
  if (!nb::try_cast(capsule_of(object, why), owner_)) throw_no_array(name, object, why);
  if (owner_.device_type() != nb::device::cpu::value) throw_type(name, "expected an array in CPU memory");
  view_ = view_of_ndarray<View>(name, object, owner_);
}

nb::object argument_of(nb::handle object, const char* name, const char* dtype) {
  return nb::module_::import_("heed._arrays").attr("option")(object, name, dtype);
}

template class BasicArray<TensorView, nb::ndarray<nb::ro>>;
template class BasicArray<MutableTensorView, nb::ndarray<>>;

Layout parse_layout(std::string_view text) {
  if (text == "BLHD") return Layout::kTokensFirst;
  if (text == "BHLD") return Layout::kHeadsFirst;
  throw_value("layout", "expected \"BLHD\" or \"BHLD\", got \"" + std::string(text) + "\"");
}

}  // namespace heed::python
