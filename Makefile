# The same chores for hands that type make: everything is in ./dev.
.PHONY: demo test bench lint lock
demo test bench lint lock:
	./dev $@
