// Additions by scripts. The pages work without them.
import { setUpCopying } from "./copy.js";
import { setUpKeys } from "./keys.js";
import { setUpMenus } from "./menus.js";
import { setUpTheme } from "./theme.js";
import { setUpZone } from "./zone.js";

setUpCopying(document);
setUpKeys(document);
setUpMenus(document);
setUpTheme(document);
setUpZone(document);
