// What the pages gain from a script: nothing here is needed to use them.
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
