// Python's objects, read and made while this thread holds its lock. The functions are of Python's stable
// interface (PEP 384): declared here, they need none of its headers, and are the same for all its versions.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

struct _object;
using Object = _object;

extern "C" {
extern Object _Py_NoneStruct;
extern Object *PyExc_OverflowError, *PyExc_ValueError;
ssize_t PySequence_Size(Object*);
Object* PySequence_GetItem(Object*, ssize_t);
ssize_t PyTuple_Size(Object*);
Object* PyTuple_GetItem(Object*, ssize_t);  // borrowed
Object* PyTuple_New(ssize_t);
int PyTuple_SetItem(Object*, ssize_t, Object*);  // which takes the reference
Object* PyList_New(ssize_t);
int PyList_SetItem(Object*, ssize_t, Object*);  // which takes the reference
long long PyLong_AsLongLong(Object*);
unsigned long long PyLong_AsUnsignedLongLong(Object*);
Object* PyLong_FromLongLong(long long);
double PyFloat_AsDouble(Object*);
Object* PyFloat_FromDouble(double);
Object* PyErr_Occurred();
void PyErr_SetString(Object*, const char*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
Object* PyObject_CallNoArgs(Object*);
void Py_DecRef(Object*);
}

namespace {

// some(thread), while other threads may run Python. (No destructor takes the lock back: where Python is ending, that
// ends the thread.)
template <class Some>
void unlocked(Some some) {
  void* thread = PyEval_SaveThread();
  some(thread);
  PyEval_RestoreThread(thread);
}

// Within it, calls what may be called, by the same thread; an error stays behind.
inline void call_locked(Object* callable, void* thread) {
  PyEval_RestoreThread(thread);
  if (Object* found = PyObject_CallNoArgs(callable)) Py_DecRef(found);
  PyEval_SaveThread();
}

// What is not a number, or too large a one, leaves an error behind, which whoever reads asks for at the end.
inline void put(Object* from, int64_t& to) { to = PyLong_AsLongLong(from); }
inline void put(Object* from, int32_t& to) {
  const long long wide = PyLong_AsLongLong(from);
  to = int32_t(wide);
  if (to != wide) PyErr_SetString(PyExc_OverflowError, "a number of 32 bits is due");
}
inline void put(Object* from, uint64_t& to) { to = PyLong_AsUnsignedLongLong(from); }
inline void put(Object* from, float& to) { to = float(PyFloat_AsDouble(from)); }
template <class Pointed>
void put(Object* from, Pointed*& to) {
  to = reinterpret_cast<Pointed*>(PyLong_AsUnsignedLongLong(from));
}

// A tuple's field.
template <class To>
To field(Object* tuple, ssize_t at) {
  To found{};
  put(PyTuple_GetItem(tuple, at), found);
  return found;
}

// some(item) for the first ones of a sequence, up to an error; how many.
template <class Some>
ssize_t each_of(Object* sequence, Some some, ssize_t most = std::numeric_limits<ssize_t>::max()) {
  const ssize_t count = std::min(PySequence_Size(sequence), most);
  for (ssize_t i = 0; i < count && !PyErr_Occurred(); ++i) {
    Object* item = PySequence_GetItem(sequence, i);
    if (item) some(item);
    Py_DecRef(item);
  }
  return count;
}

// The numbers of a sequence, behind those that are there; how many.
template <class Number>
int32_t append(Object* sequence, std::vector<Number>& to,
               ssize_t most = std::numeric_limits<ssize_t>::max()) {
  return int32_t(each_of(sequence, [&](Object* item) { put(item, to.emplace_back()); }, most));
}

inline Object* made(int64_t number) { return PyLong_FromLongLong(number); }
inline Object* made(int8_t number) { return PyLong_FromLongLong(number); }
inline Object* made(float number) { return PyFloat_FromDouble(number); }

template <class Number>
Object* list_of(const Number* numbers, ssize_t count) {
  Object* list = PyList_New(count);
  for (ssize_t i = 0; i < count; ++i) PyList_SetItem(list, i, made(numbers[i]));
  return list;
}

// Takes the references.
inline Object* pair_of(Object* one, Object* other) {
  Object* both = PyTuple_New(2);
  PyTuple_SetItem(both, 0, one);
  PyTuple_SetItem(both, 1, other);
  return both;
}

}  // namespace
