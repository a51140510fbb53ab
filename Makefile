# The same chores for hands that type make: everything is in ./dev.
.PHONY: demo test test-sdk bench lint lock
demo test test-sdk bench lint lock:
	./dev $@
